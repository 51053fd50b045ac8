"""The runner resets its graph for longer inputs and hands out the tensors of the new capture."""

# Nobody reads a tensor of the graph that was reset.

import torch
from torch import nn


class Runner:
    def __init__(self, model):
        self.model = model
        self.graph = torch.cuda.CUDAGraph()
        self.x = self.out = None

    @torch.no_grad()
    def capture(self, length):
        self.out = None
        self.graph.reset()
        self.x = torch.zeros(length, 4, device="cuda")
        for _ in range(2):
            self.model(self.x)
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            self.out = self.model(self.x)

    def __call__(self, request):
        if self.x is None or len(request) > len(self.x):
            self.capture(len(request))
        self.x[: len(request)].copy_(request)
        self.graph.replay()
        return self.out[: len(request)].cpu()


runner = Runner(nn.Linear(4, 4).cuda())
for request in (torch.ones(4, 4), torch.full((8, 4), 2.0), torch.full((3, 4), 3.0)):
    print(runner(request).sum().item())
