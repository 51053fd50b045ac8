"""torchrun --nproc-per-node N correct.py: six programs whose ranks differ where they may."""

import os
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
warnings.simplefilter("ignore")
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group("nccl", device_id=torch.device("cuda", local))
rank, world = dist.get_rank(), dist.get_world_size()
# Each rank knows its group of two, and the group of those with its place in theirs.
pairs = [dist.new_group([one, one + 1]) for one in range(0, world, 2)]
rows = [dist.new_group(list(range(place, world, 2))) for place in range(2)]
pair, row = pairs[rank // 2], rows[rank % 2]


def capture(work):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    return graph, result


def data_parallel():
    """DDP, with its backward in the graph."""
    torch.manual_seed(0)
    x = torch.ones(4, 8, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).cuda()
        model = DistributedDataParallel(layers, device_ids=[local])
        for _ in range(11):
            model.zero_grad(set_to_none=True)
            model(x).sum().backward()
        model.zero_grad(set_to_none=True)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        model(x).sum().backward()
    for step in range(3):
        x.fill_(float(rank + step))
        graph.replay()
    gradient = layers[0].weight.grad.clone()
    # The mean over ranks is what one process gets for the mean of their inputs: all are positive.
    x.fill_(sum(float(each + 2) for each in range(world)) / world)
    alone = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).cuda()
    alone.load_state_dict(layers.state_dict())
    alone(x).sum().backward()
    signs = (torch.sign(layers[0](torch.full_like(x, float(each + 2)))) for each in range(world))
    if len({tuple(sign.flatten().tolist()) for sign in signs}) == 1:
        assert torch.allclose(gradient, alone[0].weight.grad, atol=1e-4)
    everywhere = [torch.empty_like(gradient) for _ in range(world)]
    dist.all_gather(everywhere, gradient)
    assert all(torch.equal(each, gradient) for each in everywhere)


class RowParallel(nn.Module):
    def __init__(self, features, group):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features, features // 2))
        self.group = group

    def forward(self, x):
        half = x.shape[1] // 2
        start = dist.get_rank(self.group) * half
        y = x[:, start : start + half] @ self.weight.t()
        dist.all_reduce(y, group=self.group)
        return y


@torch.no_grad()
def tensor_parallel():
    """Pairs of ranks that each hold half of each weight."""
    model = nn.Sequential(RowParallel(8, pair), RowParallel(8, pair)).cuda()
    x = torch.ones(2, 8, device="cuda")
    graph, y = capture(lambda: model(x))
    for step in range(4):
        x.fill_(1.0 + step)
        graph.replay()
        assert torch.equal(y, torch.full_like(y, 64.0 * (1 + step)))


@torch.no_grad()
def pipeline():
    """Stages that have other layers, graphs and replays: each is a pair of ranks."""
    stage = rank // 2
    x = torch.zeros(2, 8, device="cuda")
    layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(1 + stage))).cuda()

    def run():
        if stage:
            dist.recv(x, rank - 2)
        y = layers(x)
        dist.all_reduce(y, group=pair)
        if rank + 2 < world:
            dist.send(y, rank + 2)
        return y

    graph, _ = capture(run)
    for _ in range(3):
        graph.replay()
    if stage == 0:
        extra, _ = capture(lambda: dist.all_reduce(x, group=pair))
        for _ in range(2):
            extra.replay()


@torch.no_grad()
def uneven():
    """Shapes, helpers and numbers of graphs that differ without a collective of all."""
    x = torch.ones(1 + rank, 8, device="cuda")
    for _ in range(rank):
        graph, _ = capture(lambda: (x * 2).relu())
        graph.replay()
    total = torch.zeros(8, device="cuda")

    def reduce():
        total.copy_(x.sum(0))
        if rank == 0:
            total.mul_(1.0)
        dist.all_reduce(total)

    graph, _ = capture(reduce)
    graph.replay()
    assert total[0].item() == world * (world + 1) / 2
    sizes = [1 + (rank + each) % 2 for each in range(world)]
    sent, got = torch.ones(sum(sizes), device="cuda"), torch.zeros(sum(sizes), device="cuda")
    graph, _ = capture(lambda: dist.all_to_all_single(got, sent, sizes, sizes))
    graph.replay()
    assert got.sum().item() == sum(sizes)


@torch.no_grad()
def grids():
    """Collectives of two groups without waiting, in an order of each rank's own; the same ones,
    in one graph or in two."""
    x, y = torch.ones(8, device="cuda"), torch.ones(8, device="cuda")

    def reduce(*calls):
        for work in [dist.all_reduce(each, group=group, async_op=True) for each, group in calls]:
            work.wait()

    if rank % 2:
        graphs = [capture(lambda: reduce((x, pair), (y, row)))[0]]
    elif rank % 4:
        graphs = [capture(lambda: reduce((y, row), (x, pair)))[0]]
    else:
        graphs = [capture(lambda: reduce((y, row)))[0], capture(lambda: reduce((x, pair)))[0]]
    for graph in graphs:
        graph.replay()
    assert (x[0].item(), y[0].item()) == (2, world // 2)


@torch.no_grad()
def experts():
    """Each rank has a batch of its own, and chooses its graph; captured in another order."""
    slots = torch.zeros(2 * world, device="cuda")
    x, graphs, sums, inputs = torch.ones(4, device="cuda"), {}, {}, []

    def exchange(size):
        slots[:size].copy_(x[:size])
        dist.all_to_all_single(torch.empty_like(slots), slots)

    for size in (1, 2, 4) if rank % 2 else (4, 2, 1):
        inputs.append(y := torch.ones(size, device="cuda"))
        graphs[size], _ = capture(lambda size=size: exchange(size))
        sums[size], _ = capture(lambda y=y: dist.all_reduce(y))
    for step in range(4):
        graphs[(1, 2, 4)[step * (rank + 1) % 3]].replay()
        sums[(4, 1)[step % 2]].replay()


data_parallel()
tensor_parallel()
pipeline()
uneven()
grids()
experts()
dist.barrier()
dist.destroy_process_group()
print(f"rank {rank} is right", flush=True)
