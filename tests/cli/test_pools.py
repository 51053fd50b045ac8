"""``cgtool pools``: which pools it shows, and what it refuses."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

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


def test_pools_that_were_not_read(run, tmp_path: Path) -> None:
    """A thread may hang in the allocator: nobody waits for it."""
    program(tmp_path, "leaves.py", LEAVES)
    assert run_program("-q", "leaves.py", "busy", folder=tmp_path).returncode == 0
    _, out, _ = run(tmp_path / "leaves-run.cgt")
    assert out.startswith("no pool memory was read\n")
    assert "not recorded  the memory of a pool" in out
