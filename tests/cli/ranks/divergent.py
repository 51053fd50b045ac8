"""torchrun --nproc-per-node 4 divergent.py SCENARIO...: ranks that differ, each scenario in a
process group of its own. Nothing hangs: what differs is captured and not replayed, or replayed in
graphs whose collectives do not meet."""

import contextlib
import os
import sys

import torch
import torch.distributed as dist
from torch import nn

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
rank, world = dist.get_rank(), dist.get_world_size()
odd = rank == world - 1


class Layer(nn.Module):
    """A row-parallel linear layer."""

    def __init__(self, group):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.group = group
        self.is_whole = True

    def forward(self, x):
        y = self.linear(x)
        if self.is_whole:
            dist.all_reduce(y, group=self.group)
        return y


def capture(work):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def skips_a_capture(group):
    x = torch.ones(8, device="cuda")
    graphs = [capture(lambda: dist.all_reduce(x, group=group))]
    if not odd:
        parts = [x.clone() for _ in range(world)]
        graphs.append(capture(lambda: dist.all_gather(parts, x, group=group)))
    graphs.append(capture(lambda: dist.broadcast(x, 0, group=group)))
    return graphs


def misses_a_collective(group):
    model = nn.Sequential(*(Layer(group) for _ in range(4))).cuda()
    model[2].is_whole = not odd
    x = torch.ones(4, 8, device="cuda")
    with torch.no_grad():
        return [capture(lambda: model(x))]


def other_order(group):
    x, y = torch.ones(8, device="cuda"), torch.ones(16, device="cuda")

    def work():
        for tensor in (y, x) if odd else (x, y):
            dist.all_reduce(tensor, group=group)

    return [capture(work)]


def other_size(group):
    x = torch.ones(16 if odd else 8, device="cuda")
    return [capture(lambda: dist.all_reduce(x, group=group))]


def other_dtype(group):
    x = torch.ones(8, device="cuda", dtype=torch.float16 if odd else torch.float32)
    return [capture(lambda: dist.all_reduce(x, group=group))]


def other_kind(group):
    x = torch.ones(8, device="cuda")
    call = dist.broadcast if odd else dist.reduce
    return [capture(lambda: call(x, 0, group=group))]


def other_root(group):
    x = torch.ones(8, device="cuda")
    return [capture(lambda: dist.broadcast(x, int(odd), group=group))]


def captures_again(group):
    x = torch.ones(8, device="cuda")
    graphs = [capture(lambda: dist.all_reduce(x, group=group)) for _ in range(2)]
    if odd:
        graphs.append(capture(lambda: dist.all_reduce(x, group=group)))
    return graphs


def capture_fails(group):
    x = torch.ones(8, device="cuda")
    graphs = [capture(lambda: dist.all_reduce(x, group=group))]

    def work():
        dist.broadcast(x, 0, group=group)
        if odd:
            x.sum().item()

    with contextlib.suppress(RuntimeError):
        graphs.append(capture(work))
    return graphs


def replays_less(group):
    # Replays of the whole group would wait: this is as when a rank leaves a loop early.
    x = torch.ones(8, device="cuda")
    graph = capture(lambda: dist.all_reduce(x, group=group))
    dist.barrier()
    quietly(graph, 2 if odd else 3)
    return [graph]


def replays_in_another_order(group):
    x = torch.ones(8, device="cuda")
    one = capture(lambda: dist.all_reduce(x, group=group))
    two = capture(lambda: dist.broadcast(x, 0, group=group))
    for graph in (one, two, two, one) if odd else (one, two, one, two):
        quietly(graph, 1)
    return [one, two]


def quietly(graph, count):
    """Replay a graph without what it would wait for."""
    steps, graph._graph.steps = graph._graph.steps, []
    for _ in range(count):
        graph.replay()
    graph._graph.steps = steps


def deadlock(group):
    other = dist.new_group(list(range(world)))
    x = torch.ones(8, device="cuda")
    dist.all_reduce(x, group=other)

    def work():
        for each in (other, group) if odd else (group, other):
            dist.all_reduce(x, group=each)

    return [capture(work)]


kept = []
for name in sys.argv[1:]:
    group = dist.new_group(list(range(world)), group_desc=name)
    x = torch.ones(8, device="cuda")
    dist.all_reduce(x, group=group)
    kept += globals()[name](group)
    if rank == 0:
        print(name, group.group_name, flush=True)
dist.barrier()
dist.destroy_process_group()
