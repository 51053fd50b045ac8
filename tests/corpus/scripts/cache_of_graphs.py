from collections import OrderedDict

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 2).cuda().eval()


class GraphCache:
    def __init__(self, size):
        self.size, self.graphs = size, OrderedDict()

    @torch.no_grad()
    def __call__(self, x):
        key = tuple(x.shape)
        if key not in self.graphs:
            if len(self.graphs) >= self.size:
                self.graphs.popitem(last=False)
            static = x.clone()
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    model(static)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = model(static)
            self.graphs[key] = graph, static, out
        self.graphs.move_to_end(key)
        graph, static, out = self.graphs[key]
        static.copy_(x)
        graph.replay()
        return out.clone()


cache = GraphCache(2)
good = True
for n in (1, 2, 3, 1, 2, 2, 3):
    x = torch.randn(n, 4, device="cuda")
    with torch.no_grad():
        good = good and torch.allclose(cache(x), model(x), atol=1e-5)
print(good)  # eager: True
