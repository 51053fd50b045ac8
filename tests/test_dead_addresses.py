"""`cgtool run` finds replays that use memory which was given back: on the simulated device, and on
a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cgtool.analysis.ledger_report import LedgerReport, ledger_report
from cgtool.model import capture_file
from cgtool.torch_compat import op_watch
from tests import dead_addresses

DEVICES = ["simulated", pytest.param("cuda", marks=pytest.mark.gpu)]
FILE = Path(dead_addresses.__file__)
ROOT = FILE.parent.parent
NAMES = [each.__name__ for each in dead_addresses.PROGRAMS]


def build_recorder(device: str) -> None:
    """Memory is followed where ops are noted in C++."""
    if device == "cuda" and not op_watch.library().is_file():
        op_watch.build()


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """By device: the report of each program."""
    known: dict[str, dict] = {}

    def of(device: str) -> dict:
        if device not in known:
            folder = tmp_path_factory.mktemp(device)
            build_recorder(device)
            command = [sys.executable, "-m", "tests.dead_addresses", str(folder)]
            command += ["simulated"] * (device == "simulated")
            done = subprocess.run(
                command, cwd=FILE.parent.parent, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            known[device] = {
                name: ledger_report(capture_file.read(folder / f"{name}.cgt")) for name in NAMES
            }
        return known[device]

    return of


def recorded(folder: Path, program: str, device: str = "simulated") -> LedgerReport:
    """The report on a program, saved as ``program-run.cgt``."""
    (folder / "program.py").write_text(program)
    build_recorder(device)
    options = ["-q", *["--device", device] * (device == "simulated")]
    command = [sys.executable, "-m", "cgtool", "run", *options, "program.py"]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    subprocess.run(command, cwd=folder, check=True, env={**os.environ, "PYTHONPATH": path})
    return ledger_report(capture_file.read(folder / "program-run.cgt"))


def marked(name: str, mark: str) -> int:
    """The line of a program, or of what it calls, that ends with a mark."""
    lines = FILE.read_text().splitlines()
    start = lines.index(f"def {name}():")
    for at in [*range(start, len(lines)), *range(start)]:
        if lines[at].endswith(f"# {mark}"):
            return at + 1
        if at > start and lines[at].startswith("@program"):
            break
    return next(at + 1 for at, line in enumerate(lines) if line.endswith(f"# {mark}"))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NAMES)
def test_what_a_replay_uses_after_it_was_given_back(name: str, device: str, reports) -> None:
    report = reports(device)[name]
    found = [each for each in report.findings if each.code == "input-freed-before-replay"]
    if name.startswith("right_"):
        assert not found, found
        return
    (finding,) = found
    assert finding.frames[0].line == marked(name, "gone"), finding
    used = f"({FILE.name}:{marked(name, 'used')})"
    assert any(used in line for line in finding.evidence), (used, finding)
    assert len(set(finding.evidence)) == len(finding.evidence), finding


def test_a_gradient_has_the_name_of_its_parameter(reports) -> None:
    report = reports("simulated")["gradients_are_none"]
    (finding,) = report.findings
    assert "`weight.grad`" in finding.reason
    assert "set_to_none=False" in (finding.fix or "")


def test_replays_are_counted_for_each_memory(tmp_path: Path) -> None:
    report = recorded(
        tmp_path,
        """
import torch

first, second = ([torch.ones(4, device="cuda")] for _ in range(2))
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = first[0] + second[0]
first.clear()
for _ in range(10):
    graph.replay()
second.clear()
for _ in range(5):
    graph.replay()
""",
    )
    assert [row.stale_replays for row in report.memory] == [15, 5]


@pytest.mark.parametrize("device", DEVICES)
def test_what_a_graph_reads_from_a_pool_must_survive_between_replays(
    device: str, tmp_path: Path
) -> None:
    report = recorded(
        tmp_path,
        """
import torch

x = torch.ones(1 << 20, device="cuda")
first, second, third = (torch.cuda.CUDAGraph() for _ in range(3))
with torch.cuda.graph(first):
    hidden, scratch = x + 1, x + 2
with torch.cuda.graph(second, pool=first.pool()):
    total = hidden * 2
    scratch.zero_()  # written before it is read
    total += scratch
with torch.cuda.graph(third, pool=first.pool()):
    total += 1
for graph in (first, second, third):
    graph.replay()
""",
        device,
    )
    pool, x = sorted(report.memory, key=lambda row: row.kind)
    assert (pool.kind, pool.names, pool.count, pool.bytes) == (
        "pool",
        ("hidden", "total"),
        2,
        8 << 20,
    )
    assert (pool.graphs, pool.readers, pool.writers, pool.gone_at) == (2, 2, 1, None)
    assert (x.kind, x.names, x.graphs, x.readers) == ("variable", ("x",), 1, 2)
    assert not report.findings
    dump = [sys.executable, "-m", "cgtool", "dump", "program-run.cgt", "--json", "--graph", "1"]
    shown = subprocess.run(dump, cwd=tmp_path, check=True, capture_output=True, text=True)
    ((graph, memory),) = json.loads(shown.stdout)["graphs"][0]["memory"].items()
    assert graph == "1"
    assert {each["name"]: (each["reads"], each["writes"]) for each in memory} == {
        "hidden": ([0], []),
        "scratch": ([2], [1]),
    }


def test_what_a_pool_keeps_is_there_after_its_storage_is_resized(tmp_path: Path) -> None:
    report = recorded(
        tmp_path,
        """
import torch

x = torch.ones(4, device="cuda")
first, second = (torch.cuda.CUDAGraph() for _ in range(2))
with torch.cuda.graph(first):
    hidden = x + 1
with torch.cuda.graph(second, pool=first.pool()):
    total = hidden * 2
hidden.untyped_storage().resize_(0)
for graph in (first, second):
    graph.replay()
""",
    )
    assert not report.findings
    assert {row.kind: row.gone_at for row in report.memory} == {"pool": None, "variable": None}


def test_a_collective_that_is_done_keeps_no_memory(tmp_path: Path) -> None:
    report = recorded(
        tmp_path,
        """
import torch
import torch.distributed as dist

dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
x, y = torch.ones(4, device="cuda"), torch.ones(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y.add_(x)
dist.all_reduce(x, async_op=True).wait()
torch.cuda.synchronize()
del x
graph.replay()
""",
    )
    (finding,) = report.findings
    assert finding.frames[0].line == 12


@pytest.mark.gpu
@pytest.mark.parametrize(
    "keep", ["cgtool.event('start')", "torch.cuda.memory._record_memory_history()"]
)
def test_memory_has_the_line_that_allocated_it(keep: str, tmp_path: Path) -> None:
    report = recorded(
        tmp_path,
        f"""
import torch, cgtool
early = torch.ones(1 << 20, device="cuda")
{keep}
def caches():
    return [torch.ones(1 << 22, device="cuda")]  # line 6
cache = caches()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = cache[0][: 1 << 20] + early
del early
cache.clear()
graph.replay()
""",
        "cuda",
    )
    assert {row.names: row.allocated_at for row in report.memory} == {
        ("cache[0]",): "program.py:6",
        ("early",): "",
    }
    evidence = {line for each in report.findings for line in each.evidence}
    assert "`cache[0]` was allocated at program.py:6" in evidence


def test_the_end_of_a_graph_forgets_no_later_memory_of_a_storage(tmp_path: Path) -> None:
    recorded(
        tmp_path,
        """
import torch

x = torch.ones(4096, device="cuda")
storage = x.untyped_storage()

def captured():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = x + 1
    return graph

first = captured()
size = storage.nbytes()
storage.resize_(3 * size)  # elsewhere: the old memory is there until it is copied
second = captured()
del first
storage.resize_(5 * size)
second.replay()
""",
    )
    capture = capture_file.read(tmp_path / "program-run.cgt")
    assert capture.ledger is not None
    assert [each.how for each in capture.ledger.memory] == ["resized", "resized"]


def test_memory_of_graphs_that_follow_each_other_is_counted_once(tmp_path: Path) -> None:
    report = recorded(
        tmp_path,
        """
import torch

x = torch.ones(4, device="cuda")
for _ in range(3):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
    graph.replay()
    del graph
""",
    )
    (row,) = report.memory
    assert (row.count, row.bytes, row.graphs) == (1, 16, 3)


def test_the_first_capture_finds_names_behind_many_values(tmp_path: Path) -> None:
    report = recorded(
        tmp_path,
        """
import torch

class Engine:
    def __init__(self):
        self.model = torch.nn.Linear(4, 4).cuda()

batches, engine = [[[] for _ in range(500)] for _ in range(2)], Engine()
x, graph = torch.ones(1, 4, device="cuda"), torch.cuda.CUDAGraph()
with torch.no_grad(), torch.cuda.graph(graph):
    engine.model(x)
graph.replay()
""",
    )
    assert {row.kind for row in report.memory} == {"parameter", "variable"}
