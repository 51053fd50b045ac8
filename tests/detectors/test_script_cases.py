"""Scripts of ours: what is marked is found, and nothing else; innocent ones stay innocent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.detectors.scripts import Outcome, check_all, marks

_HERE = Path(__file__).parent
INNOCENT = sorted((_HERE / "innocent").glob("*.py"))
GUILTY = sorted((_HERE / "guilty").glob("*.py"))


@pytest.fixture(scope="module")
def outcomes() -> dict[Path, Outcome]:
    return check_all({path: {} for path in (*INNOCENT, *GUILTY)})


@pytest.mark.parametrize("path", INNOCENT, ids=lambda path: path.stem)
def test_innocent(path: Path, outcomes: dict[Path, Outcome]) -> None:
    outcome = outcomes[path]
    assert outcome.failure is None
    assert outcome.findings == frozenset(), outcome.reasons
    assert not any("ended with" in part for part in outcome.looked)


@pytest.mark.parametrize("path", GUILTY, ids=lambda path: path.stem)
def test_guilty(path: Path, outcomes: dict[Path, Outcome]) -> None:
    outcome = outcomes[path]
    assert outcome.findings == marks(path.read_text()), outcome.reasons
