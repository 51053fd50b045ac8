"""Two models in one server, one class of runner; each instance has its own graphs, in one pool."""

import torch
from torch import nn


class Runner:
    pool = None

    def __init__(self, model):
        self.model, self.graphs = model, {}

    def _capture(self, shape):
        x = torch.zeros(shape, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.model(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=Runner.pool):
            y = self.model(x)
        Runner.pool = Runner.pool or graph.pool()
        self.graphs[shape] = graph, x, y

    @torch.no_grad()
    def __call__(self, batch):
        shape = tuple(batch.shape)
        if shape not in self.graphs:
            self._capture(shape)
        graph, x, y = self.graphs[shape]
        x.copy_(batch)
        graph.replay()
        return y.clone()


def constant(value):
    layer = nn.Linear(8, 2).cuda()
    nn.init.constant_(layer.weight, value)
    nn.init.zeros_(layer.bias)
    return layer


english, french = Runner(constant(1.0)), Runner(constant(2.0))
batch = torch.ones(4, 8, device="cuda")
print(english(batch)[0, 0].item())  # eager: 8.0
print(french(batch)[0, 0].item())  # eager: 16.0
print(english(2 * batch)[0, 0].item())  # eager: 16.0
