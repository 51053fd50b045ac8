"""Delayed scaling of fp8 whose history of largest values is rolled in its own memory."""

import torch
from torch import nn


class Quantized(nn.Module):
    def __init__(self, width, history=4):
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)
        self.register_buffer("amax", torch.ones(history))

    @torch.no_grad()
    def forward(self, x):
        scale = 448.0 / self.amax.max()
        q = (x * scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        self.amax.copy_(torch.roll(self.amax, 1))
        self.amax[0] = x.abs().max()
        return self.linear(q.float() / scale)


torch.manual_seed(0)
model = Quantized(16).cuda()
x = torch.randn(4, 16, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        model(x)
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = model(x)

for size in (1.0, 10.0, 600.0, 600.0):
    x.copy_(torch.randn(4, 16) * size)
    graph.replay()
    print(y.abs().mean().item(), model.amax.tolist())
