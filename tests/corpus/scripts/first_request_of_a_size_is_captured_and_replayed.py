"""Graphs are captured when a batch size is first seen, and replayed for that batch too."""

import dataclasses
import threading

import torch
from torch import nn


@dataclasses.dataclass
class Captured:
    graph: torch.cuda.CUDAGraph
    x: torch.Tensor
    out: torch.Tensor

    def run(self, batch):
        self.x.copy_(batch)
        self.graph.replay()
        return self.out.cpu()


class LazyGraphs(dict):
    def __init__(self, model, width):
        super().__init__()
        self.model = model
        self.width = width
        self.pool = torch.cuda.graph_pool_handle()
        self.lock = threading.Lock()

    def __missing__(self, rows):
        x = torch.zeros(rows, self.width, device="cuda")
        self.model(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            out = self.model(x)
        return self.setdefault(rows, Captured(graph, x, out))

    @torch.inference_mode()
    def rank(self, batch):
        with self.lock:
            return self[len(batch)].run(batch)


ranker = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid()).cuda().eval()
graphs = LazyGraphs(ranker, 10)
best = []
for candidates in (8, 4, 8, 8, 4, 2):
    scores = graphs.rank(torch.randn(candidates, 10))
    best.append((candidates, scores.argmax().item()))
print(best)
