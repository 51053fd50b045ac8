"""Collectives of NCCL in graphs, and ranks, under ``cgtool run`` on GPUs."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from cgtool.analysis.ranks.differences import differences_of
from cgtool.analysis.ranks.rank import calls_of, ranks_of
from cgtool.model import capture_file
from cgtool.model.capture import Capture

pytestmark = pytest.mark.gpu

ONE_RANK = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_reduce

torch.cuda.set_device(0)
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(8, device="cuda")
parts = torch.zeros(8, device="cuda")
half = torch.ones(4, device="cuda", dtype=torch.float16)

class Layer(nn.Module):
    def forward(self, x):
        y = x * 2
        dist.all_reduce(y)
        return y

layer = nn.Sequential(Layer())

def step():
    y = layer(x)
    work = dist.broadcast(half, 0, async_op=True)
    dist.all_gather_into_tensor(parts, y)
    work.wait()
    return all_reduce(y, "sum", dist.group.WORLD) + 1

for _ in range(3):
    step()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    z = step()
for value in range(4):
    x.fill_(float(value))
    graph.replay()
torch.cuda.synchronize()
assert z.tolist() == [7.0] * 8 and parts.tolist() == [6.0] * 8, (z, parts)
graph.reset()
dist.destroy_process_group()
"""


def run(*arguments: object, folder: Path) -> Capture:
    command = [sys.executable, "-m", "cgtool", "run", "-o", "run.cgt", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return capture_file.read(folder / "run.cgt")


def check_one_rank(folder: Path) -> None:
    (folder / "one.py").write_text(textwrap.dedent(ONE_RANK))
    (rank,) = ranks_of([run("one.py", folder=folder)])
    assert (rank.number, rank.process.world_size) == (0, 1)
    (graph,) = rank.graphs
    calls = calls_of(rank, graph)
    assert [each.signature for each in calls] == [
        ("all_reduce", "float32", None, 32),
        ("broadcast", "float16", 0, 8),
        ("all_gather", "float32", None, 32),
        ("all_reduce", "float32", None, 32),
    ]
    assert [each.collective.waits for each in calls] == [True, False, True, False]
    assert {each.collective.communicator.ranks for each in calls} == {(0,)}
    assert rank.process.last_replays == (graph.number,) * 4
    assert rank.begun([graph]) == graph.replays == 4
    # Each has nodes of its own, so it has a line; NCCL may run nothing for a group of one.
    if calls[0].collective.origin is not None:
        assert calls[0].where.startswith(" of 0 (one.py:")


def test_collectives_of_one_rank(tmp_path: Path) -> None:
    check_one_rank(tmp_path)


def test_collectives_that_are_noted_in_python(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", "false")
    check_one_rank(tmp_path)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_ranks_that_do_nothing_wrong(tmp_path: Path) -> None:
    program = Path(__file__).parents[1] / "cli" / "ranks" / "correct.py"
    torchrun = sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", 2, program
    ranks = ranks_of([run("--", *torchrun, folder=tmp_path)])
    assert [rank.number for rank in ranks] == [0, 1]
    assert differences_of(ranks) == ()
    assert all(each.collective_bytes for rank in ranks for each in rank.graphs[:1])
