"""``cgtool pools``: which pools it shows, and what it refuses."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from cgtool.model import capture_file
from tests.cli.test_run import program
from tests.cli.test_run import run as run_program

TWO_POOLS = Path(__file__).parent.parent / "gold" / "captures" / "mlp-separate-simulated.cgt"


@pytest.fixture
def run(cgtool):
    return partial(cgtool, "pools")


def pools_of(text: str) -> list[str]:
    return [row["name"] for row in json.loads(text)["pools"]]


def test_all_pools_by_default(run) -> None:
    code, out, err = run(TWO_POOLS, "--format", "json")
    assert (code, err) == (0, "")
    assert pools_of(out) == ["forward", "backward"]
    assert json.loads(out)["simulated"] is True


def test_only_the_named_pools(run) -> None:
    _, out, _ = run(TWO_POOLS, "--format", "json", "--pool", "backward")
    assert pools_of(out) == ["backward"]
    names = ("--pool", "backward", "--pool", "forward")
    assert pools_of(run(TWO_POOLS, "--format", "json", *names)[1]) == ["forward", "backward"]
    _, out, _ = run(TWO_POOLS, "--pool", "backward")
    assert "backward" in out
    assert "forward" not in out


def test_a_pool_that_is_not_there(run) -> None:
    code, out, err = run(TWO_POOLS, "--pool", "backward", "--pool", "sideways")
    assert (code, out) == (2, "")
    assert "--pool sideways: the capture has forward, backward" in err


def test_a_table_in_a_file(run, tmp_path: Path) -> None:
    target = tmp_path / "pools.txt"
    assert run(TWO_POOLS, "-o", target)[:2] == (0, "")
    assert "(simulated: a model of the allocator)" in target.read_text()


def test_headings_are_explained_when_requested(run):
    assert "never used  bytes of the segments" not in run(TWO_POOLS)[1]
    assert "never used  bytes of the segments" in run(TWO_POOLS, "--explain")[1]


LEAVES = """
import os, sys, threading, torch

x = torch.ones(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    x * 2
how = sys.argv[1]
if how == "busy":
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    os._exit(0)
elif how == "_exit":
    os._exit(0)
else:
    os.execv("/bin/true", ["true"])
"""


@pytest.mark.parametrize("how", ["_exit", "execv"])
def test_a_program_that_leaves_without_exit_handlers(run, tmp_path: Path, how: str) -> None:
    program(tmp_path, "leaves.py", LEAVES)
    assert run_program("-q", "leaves.py", how, folder=tmp_path).returncode == 0
    _, out, _ = run(tmp_path / "leaves-run.cgt")
    assert out.startswith("1 pool with 2.0 MiB")
    assert "not recorded" not in out
    _, out, _ = run(tmp_path / "leaves-run.cgt", "--format", "json")
    assert json.loads(out)["graph_memory"][0]["kept_bytes"] == 0  # nobody has its result
    assert json.loads(out)["pools"][0]["used_bytes"] == 0


def test_pools_that_were_not_read(run, tmp_path: Path) -> None:
    """A thread may hang in the allocator: nobody waits for it."""
    program(tmp_path, "leaves.py", LEAVES)
    assert run_program("-q", "leaves.py", "busy", folder=tmp_path).returncode == 0
    _, out, _ = run(tmp_path / "leaves-run.cgt")
    assert out.startswith("no pool memory was read\n")
    assert "not recorded  the memory of a pool" in out


SIZES = """
import torch, cgtool

model = torch.nn.Linear(512, 2048).cuda().requires_grad_(False)
pool, kept = None, []
for batch in (1024, 512, 64, 8, 2048):
    x = torch.randn(batch, 512, device="cuda")
    model(x)
    graph = torch.cuda.CUDAGraph()
    cgtool.note(batch=batch)
    with torch.cuda.graph(graph, pool=pool):
        y = model(x)
    pool = pool or graph.pool()
    kept.append((graph, x, y))
segments = torch.cuda.memory_snapshot()
mine = [each for each in segments if tuple(each["segment_pool_id"]) == pool]
print(*(sum(each[size] for each in mine) for size in ("total_size", "active_size")))
print(*(y.nbytes for _, _, y in kept))
"""


def test_what_each_graph_adds_to_its_pool(run, tmp_path: Path) -> None:
    program(tmp_path, "sizes.py", SIZES)
    done = run_program("-q", "sizes.py", folder=tmp_path)
    _, out, _ = run(tmp_path / "sizes-run.cgt", "--format", "json")
    report = json.loads(out)
    rows = report["graph_memory"]
    keys = [f"batch {size}" for size in (1024, 512, 64, 8, 2048)]
    assert [row["key"] for row in rows] == keys
    graphs = capture_file.read(tmp_path / "sizes-run.cgt").graphs
    assert [graph.name for graph in graphs] == [f"<module> {key}" for key in keys]
    reserved, used, *results = map(int, done.stdout.split())
    assert sum(row["grown_bytes"] for row in rows) == reserved
    assert [row["kept_bytes"] for row in rows] == results
    assert used == sum(results)
    # 1,024 rows of 2,048 numbers, and 2,048 rows of them, in segments of 2 MiB.
    assert rows[0]["grown_bytes"] >= 8 << 20
    assert rows[4]["grown_bytes"] >= 16 << 20
    _, out, _ = run(tmp_path / "sizes-run.cgt")
    assert "sizes.py:11: one more size between two of 4 would add" in " ".join(out.split())
