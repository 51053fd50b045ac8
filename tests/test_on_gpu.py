"""What `benchmarks/on_gpu.py` keeps of jobs that end, that fail, and that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks import on_gpu
from benchmarks.on_gpu import Job

LEAVES = "import os, pathlib; print('good'); pathlib.Path(os.environ['OUT'], 'f').write_text('x')"
SLEEPS = "import subprocess; print('begins'); subprocess.run(['sleep', '600'])"


def lines_of(folder: Path) -> dict[str, dict[str, Any]]:
    lines = (folder / "jobs.jsonl").read_text().splitlines()
    return {line["job"]: line for line in map(json.loads, lines)}


def test_what_ended_is_kept_and_what_runs_too_long_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = {
        "timed": Job(("-c", "print('timed')"), 60, alone=True),
        "leaves": Job(("-c", LEAVES), 60),
        "fails": Job(("-c", "raise SystemExit(3)"), 60),
        "sleeps": Job(("-c", SLEEPS), 3),
    }
    monkeypatch.setattr(on_gpu, "JOBS", jobs)
    assert on_gpu.run(dict.fromkeys(jobs, ()), tmp_path, 3, 300) == 1
    ended = lines_of(tmp_path)
    assert {name: line["exit"] for name, line in ended.items()} == {
        "leaves": 0, "fails": 3, "sleeps": None, "timed": 0,
    }  # fmt: skip
    assert list(ended)[-1] == "timed"
    log = (tmp_path / "log.txt").read_text()
    assert "good" in log
    assert "begins" in log
    with zipfile.ZipFile(tmp_path / "files.zip") as archive:
        assert archive.namelist() == ["leaves/f"]


def test_nothing_starts_after_the_time_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = {"first": Job(("-c", SLEEPS), 60), "second": Job(("-c", SLEEPS), 60)}
    monkeypatch.setattr(on_gpu, "JOBS", jobs)
    assert on_gpu.run(dict.fromkeys(jobs, ()), tmp_path, 1, 3) == 1
    assert list(lines_of(tmp_path)) == ["first"]
    assert "not started in time" in capsys.readouterr().out


def test_a_run_that_is_stopped_kills_its_jobs_and_keeps_what_they_printed(tmp_path: Path) -> None:
    command = (
        "from benchmarks import on_gpu\n"
        f"on_gpu.JOBS = {{'sleeps': on_gpu.Job(('-c', {SLEEPS!r}), 600)}}\n"
        "raise SystemExit(on_gpu.main())"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", command, str(tmp_path / "out"), "--only", "sleeps"],
        env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    while not any(file.read_text() for file in tmp_path.glob("on-gpu-*/printed")):
        assert run.poll() is None
        time.sleep(0.05)
    run.send_signal(signal.SIGTERM)
    assert run.wait(timeout=60) == 128 + signal.SIGTERM
    assert lines_of(tmp_path / "out")["sleeps"]["exit"] is None
    assert "begins" in (tmp_path / "out" / "log.txt").read_text()


def test_each_recorded_capture_is_of_a_sample() -> None:
    """Their names tell how they are made."""
    made: list[list[str]] = []
    with pytest.MonkeyPatch.context() as patched:
        done = subprocess.CompletedProcess([], 0)
        patched.setattr(subprocess, "run", lambda words, **_: made.append(words) or done)
        assert on_gpu.capture_samples(Path("folder")) == 0
    captures = sorted(Path("samples/captures").glob("*.cgt"))
    assert [Path(words[-1]).name for words in made] == [capture.name for capture in captures]
    for words in made:
        assert Path(words[4].removesuffix(":build")).is_file()
