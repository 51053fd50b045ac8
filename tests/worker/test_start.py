"""A worker that cannot be started is not taken for a file that cannot be written."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import msgspec
import pytest

import cgtool
from cgtool.cli.workers import capture_of
from cgtool.model import jobs
from cgtool.model.failure import EXIT_MACHINE, CgtoolError
from cgtool.model.jobs import CaptureJob
from cgtool.model.options import CaptureOptions


def test_no_worker_can_be_started(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone" / "python"))
    output = tmp_path / "out.cgt"
    with pytest.raises(CgtoolError) as caught:
        capture_of(CaptureJob("model:build"), output)
    failure = caught.value.failure
    assert failure.exit_code == EXIT_MACHINE
    assert failure.message.startswith("a worker process cannot be started: ")
    assert "No such file" in failure.message
    assert not list(tmp_path.iterdir())


@pytest.mark.fresh_worker
def test_a_clone_works_where_it_is(tmp_path: Path) -> None:
    """``python -m cgtool`` in a clone that is not installed: its workers run the same code."""
    root = Path(cgtool.__file__).parent.parent
    for folder in ("cgtool", "docs/findings"):
        shutil.copytree(root / folder, tmp_path / folder)
    (tmp_path / "model.py").write_text(
        "import cgtool, sys\nprint('worker:', cgtool.__file__, file=sys.stderr)\n"
        "def f(x):\n    return x + 1\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "cgtool", "capture", "model.py:f", "--input", "x=float32[4]",
         "--device", "simulated"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"worker: {tmp_path}" in done.stderr


def test_every_job_has_one_place_that_runs_it() -> None:
    from cgtool.jobs.dispatch import RUN

    assert set(RUN) == set(get_args(jobs.AnyJob)) == set(jobs.Job.__subclasses__())


@pytest.mark.parametrize("kind", get_args(jobs.AnyJob))
def test_a_request_arrives_as_it_was_sent(kind: type[jobs.Job]) -> None:
    more = {"against": "other.py:build"} if kind is jobs.AgainstJob else {}
    request = jobs.Request(kind("model.py:build", CaptureOptions(seed=1), **more), "out", ("a",))
    assert msgspec.json.decode(msgspec.json.encode(request), type=jobs.Request) == request


def test_a_script_is_known_by_its_name(tmp_path: Path) -> None:
    odd = tmp_path / "odd:name"
    odd.touch()
    for spec in ("train.py", str(odd)):
        assert isinstance(jobs.check_job(spec, CaptureOptions()), jobs.ScriptJob)
    assert isinstance(jobs.check_job("train.py:build", CaptureOptions()), jobs.CheckJob)
