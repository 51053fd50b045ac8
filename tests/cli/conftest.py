"""The command line in this process: a test that starts none takes a tenth of the time."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from cgtool.cli.app import main
from tests.forked_workers import workers  # noqa: F401

Cgtool = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cgtool(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cgtool:
    """Run ``cgtool`` with these arguments: (exit code, standard output, standard error)."""

    def cgtool(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["cgtool", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        return (code, *capfd.readouterr())

    return cgtool


@pytest.fixture(autouse=True)
def _forked(workers: None) -> None:  # noqa: F811
    """Workers of the command line in this process are forked."""
