"""A worker that cannot be started is not taken for a file that cannot be written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cgtool.cli.attempts import attempt
from cgtool.model.failure import EXIT_MACHINE, CgtoolError


def test_no_worker_can_be_started(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone" / "python"))
    output = tmp_path / "out.cgt"
    with pytest.raises(CgtoolError) as caught:
        attempt("model.py:build", output, quiet=True)
    failure = caught.value.failure
    assert failure.exit_code == EXIT_MACHINE
    assert failure.what.startswith("a worker process cannot be started: ")
    assert "No such file" in failure.what
    assert not list(tmp_path.iterdir())
