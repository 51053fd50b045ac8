"""Workers that have imported torch before they get a job: one test starts them as for a user."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from cgtool.cli.workers import Measuring, Runs
from cgtool.model.capture_file import read
from cgtool.model.jobs import CaptureJob
from cgtool.model.options import CaptureOptions
from cgtool.worker import supervisor
from tests.forked_workers import workers  # noqa: F401

MODEL = """
import os, sys
from pathlib import Path
import torch

def build(device):
    with Path(__file__).with_name("pids").open("a") as file:
        file.write(f"{os.getpid()} ")
    return torch.nn.Linear(4, 4).to(device), (torch.randn(2, 4, device=device),)
"""
SIMULATED = CaptureOptions(device="simulated")


@pytest.fixture(autouse=True)
def _forked(workers: None) -> None:  # noqa: F811
    """Workers are forked."""


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    return f"{tmp_path / 'model.py'}:build"


def used(spec: str) -> list[int]:
    return list(map(int, Path(spec.partition(":")[0]).with_name("pids").read_text().split()))


def run(spec: str, output: Path) -> None:
    supervisor.run(CaptureJob(spec, SIMULATED), output)
    assert read(output).entry.spec == spec


@pytest.mark.fresh_worker
def test_waiting_workers_are_used_first_and_unused_ones_end(spec, tmp_path):
    with supervisor.ahead(2):
        waiting = [worker.process for worker in supervisor._waiting]
        folders = [worker.stack_file.parent for worker in supervisor._waiting]
        assert [process.poll() for process in waiting] == [None, None]
        run(spec, tmp_path / "a.cgt")
    assert used(spec) == [waiting[0].pid]
    assert all(process.poll() is not None for process in waiting)
    assert not any(folder.exists() for folder in folders)
    run(spec, tmp_path / "b.cgt")
    assert used(spec)[1] != waiting[1].pid


def test_a_worker_whose_parent_is_gone_ends_by_itself():
    worker = supervisor.Worker(ahead=True)
    try:
        assert worker.is_ready()
        worker.process.stdin.close()
        assert worker.process.wait(10) == 0
    finally:
        worker.end()


def test_a_waiting_worker_that_died_is_replaced(spec, tmp_path, monkeypatch):
    monkeypatch.setattr(
        supervisor.Worker, "is_ready", lambda self: self.process.send_signal(signal.SIGKILL)
    )
    with supervisor.ahead(2):
        run(spec, tmp_path / "a.cgt")
    assert len(used(spec)) == 1


def test_a_failure_leaves_nothing_behind(spec, tmp_path):
    (tmp_path / "model.py").write_text("raise ValueError('no')")
    with pytest.raises(supervisor.CgtoolError, match="no"), supervisor.ahead(2):
        waiting = [worker.process for worker in supervisor._waiting]
        run(spec, tmp_path / "a.cgt")
    assert all(process.poll() is not None for process in waiting)
    assert not supervisor._waiting


@pytest.mark.parametrize(("processors", "batches"), [(1, []), (8, [3])])
def test_runs_start_together_where_there_are_processors(
    spec, tmp_path, monkeypatch, processors, batches
):
    real, started = supervisor.ahead, []
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    monkeypatch.setattr(supervisor, "ahead", lambda count: started.append(count) or real(count))
    measuring = Measuring(SIMULATED, quiet=True, folder=tmp_path)
    runs = Runs(lambda: measuring.capture(spec), 100.0, ahead=measuring.ahead)
    assert runs.up_to(3)
    assert len(runs.captures) == 3 == len(set(used(spec)))
    assert started == batches
