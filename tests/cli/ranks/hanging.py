"""torchrun --nproc-per-node N hanging.py SCENARIO: ranks that wait for each other without end."""

import os
import sys
import time

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
rank, world = dist.get_rank(), dist.get_world_size()
odd = rank == world - 1
x, y = torch.ones(8, device="cuda"), torch.ones(16, device="cuda")


def capture(work):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def replays_less():
    graph = capture(lambda: dist.all_reduce(x))
    for _ in range(2 if odd else 3):
        graph.replay()
    if odd:
        read_the_next_batch()


def read_the_next_batch():
    time.sleep(1000)


def two_communicators():
    other = dist.new_group(list(range(world)))
    dist.all_reduce(x, group=other)
    one, two = (capture(lambda g=g: dist.all_reduce(x, group=g)) for g in (None, other))
    for graph in (two, one) if odd else (one, two):
        graph.replay()


def crossed_in_a_graph():
    other = dist.new_group(list(range(world)))
    dist.all_reduce(x, group=other)

    def work():
        for group in (other, None) if odd else (None, other):
            dist.all_reduce(x, group=group)

    capture(work).replay()


def raises():
    graph = capture(lambda: dist.all_reduce(x))
    graph.replay()
    if odd:
        raise ValueError("no more data")
    graph.replay()


def runs_eagerly():
    graph = capture(lambda: dist.all_reduce(x))
    graph.replay()
    if odd:
        # The others wait in a replay, and this rank in its next collective.
        dist.barrier(group=dist.new_group(list(range(world))))
    graph.replay()


def captures_behind_a_collective():
    if odd:
        read_the_next_batch()
    work = dist.all_reduce(x, async_op=True)
    capture(lambda: y.add_(1))
    work.wait()


dist.all_reduce(x)
if rank == 0:
    print(time.time(), flush=True)
globals()[sys.argv[1]]()
