"""What Python holds at a replay is another than at the capture, and the replay is right."""

import collections
import contextlib
import contextvars

import torch
from torch import nn


def graphed(function, x):
    function(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = function(x)
    return graph, y


strength = contextvars.ContextVar("strength", default=1.0)


def of_context(x):
    return x * strength.get()


# Set for the capture, and for eager calls in between.
@contextlib.contextmanager
def at(value):
    token = strength.set(value)
    yield
    strength.reset(token)


# A list that grows, of which the code takes what does not change.
bands = [torch.ones(8, device="cuda")]


def of_first_band(x):
    return x * bands[0]


# Buffers take turns; each has its graph.
ring = collections.deque(torch.zeros(8, device="cuda") for _ in range(2))


def of_the_ring(x):
    return ring[0] + x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.drop = nn.Linear(8, 8), nn.Dropout(0.5)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.drop(self.linear(x))


# Captured for evaluation, and trained in between.
model = Model().cuda().eval()
x = torch.ones(8, device="cuda")

with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
    evaluation, scores = graphed(model, x)
with at(2.0):
    scaled, doubled = graphed(of_context, x)
first, banded = graphed(of_first_band, x)
turns = []
for _ in range(2):
    turns.append(graphed(of_the_ring, x))
    ring.rotate(1)

# One loop captures all of them, and its names go on to the next.
factors = [torch.full((8,), float(n), device="cuda") for n in range(3)]
graphs = []
for factor in factors:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * factor
    graphs.append((graph, y))

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    x.fill_(float(step))
    model.train()
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    model.eval()
    for graph, _ in (*graphs, *turns):
        graph.replay()
    evaluation.replay()
    scaled.replay()
    first.replay()
    torch.cuda.synchronize()
    print(scores.sum().item(), doubled.sum().item(), banded.sum().item())
    print([y.sum().item() for _, y in (*graphs, *turns)])
    bands.append(torch.full((8,), 2.0, device="cuda"))
    with at(3.0):
        print(of_context(x).sum().item())
