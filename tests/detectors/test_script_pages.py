"""Pages whose example is a script: the wrong one is found at its line, the right one is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cgtool.findings import codes, page
from tests.detectors.scripts import Outcome, check_all, marks

_COMMAND = re.compile(r"((?:\w+=\S+ )*)check wrong\.py")
NOT_FOUND: dict[str, str] = {}
"""Codes that are not found yet, and why."""


def _pages() -> dict[str, dict[str, str]]:
    settings = {}
    for code in codes():
        match = _COMMAND.fullmatch(page(code).head.simulated)
        if match is not None:
            settings[code] = dict(word.split("=", 1) for word in match[1].split())
    return settings


PAGES = _pages()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Outcome]:
    folder = tmp_path_factory.mktemp("pages")
    paths: dict[Path, tuple[str, str]] = {}
    jobs = {}
    for code, settings in PAGES.items():
        for which in ("wrong", "right"):
            path = folder / code / f"{which}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(page(code).examples[which])
            paths[path] = code, which
            jobs[path] = settings
    return {paths[path]: outcome for path, outcome in check_all(jobs).items()}


@pytest.mark.parametrize("code", PAGES)
def test_wrong_example_is_found_at_its_line(
    code: str, outcomes: dict[tuple[str, str], Outcome]
) -> None:
    if code in NOT_FOUND:
        pytest.skip(NOT_FOUND[code])
    outcome = outcomes[code, "wrong"]
    assert outcome.failure is None or outcome.findings, outcome.failure
    expected = marks(page(code).examples["wrong"])
    if expected:
        assert outcome.findings == expected, outcome.reasons
    else:
        assert {name for name, _ in outcome.findings} == {code}, outcome.reasons


@pytest.mark.parametrize("code", PAGES)
def test_right_example_is_innocent(code: str, outcomes: dict[tuple[str, str], Outcome]) -> None:
    outcome = outcomes[code, "right"]
    assert outcome.failure is None
    assert outcome.findings == frozenset(), outcome.reasons
    assert not any("ended with" in part for part in outcome.looked)
