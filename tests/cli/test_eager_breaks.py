"""``cgtool run --eager-breaks``: the ops between replays, against a count by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from cgtool.analysis.eager_breaks import EagerRow, eager_rows
from cgtool.model import capture_file
from cgtool.model.capture import Capture
from cgtool.model.ledger import EagerBreak, EagerOp, Ledger
from tests.cli.test_run import program, run

STEPS = """
import torch
from torch import nn

model = nn.Linear(4, 4).cuda()
x = torch.ones(2, 4, device="cuda", requires_grad=True)
graphs = []
with torch.no_grad():
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(x)
        graphs.append(graph)
total = torch.zeros((), device="cuda")
total += 1  # before the first replay
for step in range(6):
    graphs[0].replay()
    total += step
    total += step
    graphs[1].replay()
    if step % 2:
        (x * 2).sum().backward()
    torch.relu(total)
    if step == 3:
        with torch.no_grad(), torch.cuda.graph(torch.cuda.CUDAGraph()):
            model(x).tanh()
total.sigmoid()  # after the last one
print(total.item(), x.grad.sum().item())
"""


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    folder = tmp_path_factory.mktemp("breaks")
    name = program(folder, "steps.py", STEPS).name
    done = run("--eager-breaks", name, folder=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "31.0 48.0\n"
    assert "from one replay to the next:" in done.stderr
    return capture_file.read(folder / "steps-run.cgt")


def rows_of(capture: Capture) -> dict[tuple[str, str], EagerRow]:
    rows = eager_rows(capture, ledger(capture).breaks)
    return {(row.line, row.op): row for row in rows}


def ledger(capture: Capture) -> Ledger:
    assert capture.ledger is not None
    return capture.ledger


def line(text: str) -> str:
    return f"steps.py:{STEPS.splitlines().index(text) + 1}"


def test_each_way_from_one_graph_to_another_is_counted(capture: Capture) -> None:
    ways = {(way.before, way.after): way.times for way in ledger(capture).breaks}
    assert ways == {(0, 1): 6, (1, 0): 5}
    for way in ledger(capture).breaks:
        assert sum(op.host_ns for op in way.ops) < way.host_ns


def test_ops_have_their_line_and_their_times_per_step(capture: Capture) -> None:
    rows = rows_of(capture)
    first = STEPS.splitlines().index("    total += step") + 1
    for number in (first, first + 1):
        add = rows[f"steps.py:{number}", "aten::add_.Tensor"]
        assert (add.per_step, add.before, add.after) == (1, "<module> 0", "<module> 1")
    relu = rows[line("    torch.relu(total)"), "aten::relu"]
    assert (relu.per_step, relu.before, relu.after) == (1, "<module> 1", "<module> 0")


def test_a_line_between_many_graphs_has_one_row(capture: Capture) -> None:
    """An engine goes from each of its graphs to each other."""
    op = EagerOp("aten::copy_", (0,), count=6, host_ns=60)
    ends = (0, 1, 3), (1, 0, 2), (1, 1, 0)
    ways = [EagerBreak(before, after, times, 100, (op, op)) for before, after, times in ends]
    (row,) = eager_rows(capture, ways)
    assert (row.before, row.after) == ("<module>, 2 graphs",) * 2
    # The last way was counted, and lost.
    assert (row.per_step, row.host_ns, row.total_ns) == (36 / 5, 72, 360)
    (row,) = eager_rows(capture, ways[2:])
    assert (row.per_step, row.before) == (12, "<module> 1")


def test_a_backward_belongs_to_the_line_that_calls_it(capture: Capture) -> None:
    rows = rows_of(capture)
    there = line("        (x * 2).sum().backward()")
    # Of the five ways to the next step, two: the last step has none after it.
    assert rows[there, "aten::mul.Tensor"].per_step == pytest.approx(4 / 5)
    assert rows[there, "aten::sum"].per_step == pytest.approx(2 / 5)


def test_ops_of_captures_and_outside_of_steps_are_not_there(capture: Capture) -> None:
    ops = {op for _, op in rows_of(capture)}
    assert not ops & {"aten::tanh", "aten::sigmoid", "aten::addmm"}


def test_a_program_without_breaks_says_so(capture: Capture, cgtool, tmp_path: Path) -> None:
    ways = tuple(replace(way, ops=()) for way in ledger(capture).breaks)
    file = tmp_path / "loop.cgt"
    capture_file.write(file, replace(capture, ledger=replace(ledger(capture), breaks=ways)))
    _, out, _ = cgtool("run", file)
    assert "no op ran outside graphs from one replay to the next" in out


FAILS = """
import torch

x = torch.ones(2, 4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    x + 1

other = torch.cuda.CUDAGraph()  # without a capture
for step in range(5):
    graph.replay()
    x * 2
    if step == 2:
        try:
            other.replay()
        except RuntimeError:
            x - 1
"""


def test_a_step_that_a_failing_replay_ends_is_not_counted(tmp_path: Path) -> None:
    name = program(tmp_path, "fails.py", FAILS).name
    done = run("--eager-breaks", name, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found = ledger(capture_file.read(tmp_path / "fails-run.cgt"))
    (way,) = found.breaks
    assert way.times == 3
    assert [(op.op, op.count) for op in way.ops] == [("aten::mul.Tensor", 3)]


FORKS = """
import os, torch

torch.ones(3)
if os.fork() == 0:
    x = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x * 2
    for _ in range(5):
        graph.replay()
        x.relu()
else:
    os.wait()
"""


def test_a_forked_process_is_watched_like_its_parent(tmp_path: Path) -> None:
    name = program(tmp_path, "forks.py", FORKS).name
    done = run("--eager-breaks", name, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (way,) = ledger(capture_file.read(tmp_path / "forks-run.cgt")).breaks
    assert [(op.op, op.count) for op in way.ops] == [("aten::relu", 4)]
    assert "no op ran outside graphs" not in done.stderr
