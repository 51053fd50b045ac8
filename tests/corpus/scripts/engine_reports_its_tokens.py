"""A decode step counts tokens in a dictionary of a dictionary, which has a local name."""

import torch
from torch import nn


class Engine:
    def __init__(self):
        self.model = nn.Linear(8, 8).cuda().eval()
        self.stats = {"decode": {"tokens": 0}, "prefill": {"tokens": 0}}
        self.x = torch.zeros(4, 8, device="cuda")
        self.graph = None

    def _decode(self):
        counters = self.stats["decode"]
        counters["tokens"] += self.x.shape[0]  # guilty: no replay counts
        return self.model(self.x)

    @torch.no_grad()
    def capture(self):
        self._decode()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.y = self._decode()

    def decode(self, x):
        self.x.copy_(x)
        self.graph.replay()
        return self.y.clone()

    def report(self):
        return (
            f"decoded {self.stats['decode']['tokens']} tokens"  # guilty: the tokens of the captures
        )


engine = Engine()
engine.capture()
for _ in range(5):
    engine.decode(torch.randn(4, 8, device="cuda"))
print(engine.report())
