"""``cgtool.event``: the moments that a program marks, and what happened between them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import cgtool
from tests.forked_workers import run_cgtool

ENGINE = """
import os, threading
import torch
import cgtool

def capture(size):
    x = torch.zeros(size, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x + 1
        if size == 3:
            cgtool.event("inside")
    return graph

cgtool.event("begin")
graphs = [capture(size) for size in (1, 2, 3)]
for _ in range(5):
    graphs[0].replay()
graphs[2].reset()
cgtool.event("ready")
for _ in range(7):
    graphs[1].replay()
graphs.append(capture(9))
thread = threading.Thread(target=lambda: cgtool.event("thread"))
thread.start()
thread.join()
if not (pid := os.fork()):
    cgtool.event("child")
    os._exit(0)
os.waitpid(pid, 0)
graphs[3].replay()
"""


def test_events_divide_the_life_of_a_program(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text(ENGINE)
    done = run_cgtool("run", "--device", "simulated", "engine.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Events (simulated)" in done.stderr
    shown = run_cgtool("run", "engine-run.cgt", "--format", "csv", "--table", "events",
                       cwd=tmp_path)  # fmt: skip
    names = "process", "event", "line", "replays", "captures"
    rows = [[row[name] for name in names] for row in csv.DictReader(shown.stdout.splitlines())]
    assert [row for row in rows if row[0] == "0"] == [
        ["0", "begin", "engine.py:15", "0", "0"],
        ["0", "inside", "engine.py:12", "0", "3"],
        ["0", "ready", "engine.py:20", "5", "0"],
        ["0", "thread", "engine.py:24", "7", "1"],
        ["0", "(end)", "", "1", "0"],
    ]
    assert [row for row in rows if row[0] == "1"] == [
        ["1", "child", "engine.py:28", "0", "0"],
        ["1", "(end)", "", "0", "0"],
    ]


def test_an_event_outside_a_recording_does_nothing() -> None:
    cgtool.event("ready")
    with pytest.raises(TypeError, match="the name of the event, not int"):
        cgtool.event(3)  # type: ignore[arg-type]
