"""Captured code reads a tensor, and binds what it is kept by to another one: where it does that."""

import dataclasses

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

x = torch.randn(2, 4, device="cuda")


class Overlap(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("tail", torch.zeros(2, 4, device="cuda"), persistent=False)

    def forward(self, x):
        head = x + self.tail
        self.register_buffer("tail", head * 0.5, persistent=False)  # <- parameter-rebound
        return head


class Average:
    def __init__(self):
        self.mean = torch.zeros(2, 4, device="cuda")

    def keep(self, mean):
        self.mean = mean  # <- metadata-address-changed

    def __call__(self, x):
        mean = self.mean.lerp(x, 0.1)
        self.keep(mean.detach())
        return x - mean


@dataclasses.dataclass
class Track:
    place: torch.Tensor

    def moved(self, x):
        return dataclasses.replace(self, place=self.place + 0.2 * (x - self.place))


class Tracker:
    def __init__(self):
        self.track = Track(torch.zeros(2, 4, device="cuda"))

    def __call__(self, x):
        self.track = self.track.moved(x)  # <- metadata-address-changed
        return self.track.place * 2


class Restoring:
    def __init__(self):
        self.model, self.old = nn.Linear(4, 4, device="cuda"), {}

    def climb(self):
        for p in self.model.parameters():
            self.old[p] = p.data.clone()
            p.add_(0.1)

    def restore(self):
        for p in self.model.parameters():
            p.data = self.old[p]  # <- parameter-rebound

    @torch.no_grad()
    def __call__(self, x):
        self.climb()
        y = self.model(x)
        self.restore()
        return y


def by_a_closure():
    state = {"weights": {"scale": torch.ones(4, device="cuda")}}

    def step(x):
        scale = state["weights"]["scale"]
        state["weights"] = {"scale": scale * 0.9}  # <- metadata-address-changed
        return x * scale

    return step


@torch.no_grad()
def as_one_vector(x):
    y = net(x)
    vector = parameters_to_vector(net.parameters()) * 0.9
    vector_to_parameters(vector, net.parameters())  # <- parameter-rebound
    return y


def set_to_a_result(x):
    y = x + held
    held.set_(y * 0.5)  # <- input-rebound-not-copied
    return y


overlap, average, tracker, restoring = Overlap(), Average(), Tracker(), Restoring()
net, held, closure = (
    nn.Linear(4, 4, device="cuda"),
    torch.zeros(2, 4, device="cuda"),
    by_a_closure(),
)
runs = (overlap, average, tracker, restoring, closure, as_one_vector, set_to_a_result)
pairs = []
for run in runs:
    run(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = run(x)
    pairs.append((graph, y))
for _ in range(3):
    x.normal_()
    for graph, _ in pairs:
        graph.replay()
print([y.sum().item() for _, y in pairs])
