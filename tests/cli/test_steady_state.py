"""What a program captures, compiles and allocates after an event: `cgtool run` counts it, and
`cgtool gate` limits it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from cgtool.model import capture_file
from cgtool.model.capture import Capture
from cgtool.model.ledger import Ledger
from tests.forked_workers import run_cgtool

ENGINE = """
import torch, torch._dynamo
import cgtool

class Engine:
    def __init__(self):
        self.graphs, self.captures = {}, 0

    def capture(self, batch):
        x = torch.zeros(batch, 1 << 20, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.y = x + 1
        self.graphs[batch] = graph
        self.captures += 1

    def decode(self, batch):
        if batch not in self.graphs:
            cgtool.note(batch=batch)
            self.capture(batch)
        self.graphs[batch].replay()

@torch._dynamo.optimize("aot_eager")
def sample(logits):
    return logits * 2

def reserved():
    return sum(each["total_size"] for each in torch.cuda.memory_snapshot())

engine = Engine()
for batch in (1, 2, 4):
    engine.capture(batch)
sample(torch.ones(3))
cgtool.event("ready")
before = engine.captures, torch._dynamo.utils.counters["stats"]["unique_graphs"], reserved()
for batch in (1, 2, 4, 8, 2, 16, 1):
    engine.decode(batch)
sample(torch.ones(3))
sample(torch.ones(5))
sample(torch.ones(7))
cgtool.event("sleep")
after = engine.captures, torch._dynamo.utils.counters["stats"]["unique_graphs"], reserved()
print(*(now - then for now, then in zip(after, before)))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("steady")
    (folder / "engine.py").write_text(ENGINE)
    done = run_cgtool("run", "--device", "simulated", "-o", "run.cgt", "engine.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    (folder / "counted").write_text(done.stdout)
    return folder


def gate(folder: Path, *arguments: str, file: str = "run.cgt") -> tuple[int, str]:
    done = run_cgtool("gate", file, *arguments, cwd=folder)
    return done.returncode, done.stdout + done.stderr


def ledger(folder: Path) -> tuple[Capture, Ledger]:
    capture = capture_file.read(folder / "run.cgt")
    assert capture.ledger is not None
    return capture, capture.ledger


def test_the_counts_are_those_of_the_program(folder: Path) -> None:
    captures, compiles, reserved = map(int, (folder / "counted").read_text().split())
    done = run_cgtool("gate", "run.cgt", "--format", "json", "--max-captures-after", "ready=9",
                      cwd=folder)  # fmt: skip
    (target,) = json.loads(done.stdout)["targets"]
    figures = {name: figure for name, figure in target["figures"].items() if "-after" in name}
    assert figures == {
        "captures-after.ready": captures,
        "compiles-after.ready": compiles,
        "allocations-after.ready": 2,
        **dict.fromkeys(
            ("captures-after.sleep", "compiles-after.sleep", "allocations-after.sleep"), 0
        ),
    }
    assert (captures, compiles) == (2, 1)
    _, run = ledger(folder)
    ready, _sleep = run.events
    after = [each for each in run.allocations if each.time_ns > ready.time_ns]
    assert sum(each.bytes for each in after) == reserved


def test_a_failed_gate_names_the_line_of_each(folder: Path) -> None:
    kinds = ("captures", "compiles", "allocations")
    options = [part for kind in kinds for part in (f"--max-{kind}-after", "ready=0")]
    code, text = gate(folder, *options)
    assert code == 1
    lines = [line.strip() for line in text.splitlines()]
    assert any(
        line.startswith("2 at engine.py:12, called at engine.py:20, the first ")
        and line.endswith("after ready: batch 8")
        for line in lines
    )
    assert "1 at engine.py:39" in text
    assert "torch.compile of sample" in text
    assert "tensor 'logits' size mismatch" in " ".join(lines)
    assert "2 at engine.py:13, called at engine.py:20" in text
    assert gate(folder, *(option.replace("ready", "sleep") for option in options))[0] == 0
    assert gate(folder, "--max-captures-after", "ready=2")[0] == 0


def test_github_annotates_the_line(folder: Path) -> None:
    done = run_cgtool("gate", "run.cgt", "--max-compiles-after", "ready=0", "--format", "github",
                      cwd=folder)  # fmt: skip
    assert "engine.py,line=39" in done.stdout


def test_budgets_of_events_in_pyproject(folder: Path) -> None:
    (folder / "pyproject.toml").write_text(
        "[tool.cgtool.gate]\nmax-captures-after = { ready = 0, sleep = 0 }\n"
    )
    try:
        code, text = gate(folder)
    finally:
        (folder / "pyproject.toml").unlink()
    assert code == 1
    assert "failed: 1 of 2 figures" in text


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("0", "captures-after needs the name of an event"),
        ("ready", "write ready=0"),
        ("ready=-1", "is negative"),
    ],
)
def test_a_budget_that_names_no_event(folder: Path, option: str, says: str) -> None:
    code, text = gate(folder, "--max-captures-after", option)
    assert code == 2
    assert says in text


def written(folder: Path, **changes: Any) -> None:
    capture, run = ledger(folder)
    changed = structs.replace(capture, ledger=structs.replace(run, **changes))
    capture_file.write(folder / "changed.cgt", changed)


def test_without_the_event_nothing_can_be_told(folder: Path) -> None:
    code, text = gate(folder, "--max-captures-after", "redy=0")
    assert code == 5
    assert "the program had no event redy" in text
    written(folder, events=())
    code, text = gate(folder, "--max-captures-after", "ready=0", file="changed.cgt")
    assert code == 5
    assert "the program marked no event" in text


def test_the_event_of_a_process_counts_for_those_that_it_starts(folder: Path) -> None:
    _, run = ledger(folder)
    (process,) = run.processes
    child = structs.replace(process, pid=2, parent=process.pid)
    stranger = structs.replace(process, pid=3, parent=1)
    graphs = [structs.replace(run.graphs[-1], process=each, same_as=None) for each in (1, 2)]
    written(folder, processes=(process, child, stranger), graphs=tuple(graphs))
    code, text = gate(folder, "--max-captures-after", "ready=0", file="changed.cgt")
    assert code == 1
    assert "1 over" in text


def test_a_capture_of_an_entry_has_no_events(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import torch\ndef fn():\n    x = torch.zeros(3, device='cuda')\n    return lambda: x + 1\n"
    )
    arguments = ("--device", "simulated", "--max-captures-after", "ready=0")
    done = run_cgtool("gate", "model.py:fn", *arguments, cwd=tmp_path)
    assert done.returncode == 5
    assert "only a file of `cgtool run PROGRAM` has this figure" in done.stdout
