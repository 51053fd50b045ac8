"""Adapters live in a dict of dicts; the request names one of them."""

import torch
from torch import nn
from torch.func import functional_call


class Low(nn.Module):
    def __init__(self, width=8, rank=2):
        super().__init__()
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)

    def forward(self, x):
        return x + self.up(self.down(x))


torch.manual_seed(0)
frame = Low().cuda().requires_grad_(False)
adapters = {
    name: {key: torch.randn_like(value) for key, value in frame.named_parameters()}
    for name in ("plain", "legal", "medical")
}
x = torch.ones(2, 8, device="cuda")


class Server:
    adapter = "plain"
    graph = None

    def forward(self):
        return functional_call(frame, adapters[self.adapter], (x,))  # guilty: that of the capture

    def __call__(self, request, adapter):
        self.adapter = adapter  # guilty: the graph has another one
        x.copy_(request)
        if self.graph is None:
            self.forward()
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.out = self.forward()
        self.graph.replay()
        return self.out.sum().item()


serve = Server()
for name in ("plain", "legal", "medical", "plain"):
    print(name, serve(torch.full((2, 8), 0.5), name))
