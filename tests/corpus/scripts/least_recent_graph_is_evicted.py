"""At most two graphs are kept; the least recently used one is reset and captured again later."""

from collections import OrderedDict

import torch
from torch import nn


class Graphs:
    def __init__(self, model, most):
        self.model, self.most = model, most
        self.kept = OrderedDict()

    @torch.inference_mode()
    def __call__(self, x):
        rows = x.shape[0]
        if rows in self.kept:
            self.kept.move_to_end(rows)
        else:
            if len(self.kept) == self.most:
                _, (graph, *_rest) = self.kept.popitem(last=False)
                torch.cuda.synchronize()
                graph.reset()
            self.kept[rows] = self.capture(rows)
        graph, static, out = self.kept[rows]
        static.copy_(x)
        graph.replay()
        return out.clone()

    def capture(self, rows):
        static = torch.zeros(rows, 4, device="cuda")
        self.model(static)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = self.model(static)
        return graph, static, out


graphs = Graphs(nn.Linear(4, 4).cuda().eval(), 2)
answers = [graphs(torch.full((n, 4), float(n))) for n in (1, 2, 3, 1, 3, 2)]
print([a.shape[0] for a in answers], sum(a.sum() for a in answers).item())
