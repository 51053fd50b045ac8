"""Delayed scaling: the scale follows from the largest values of the last steps."""

import torch
from torch import nn


class Quantized(nn.Module):
    def __init__(self, width, history=4):
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)
        self.amax = torch.ones(history, device="cuda")

    @torch.no_grad()
    def forward(self, x):
        scale = 448.0 / self.amax.max()  # guilty: of the history that the capture saw
        q = (x * scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        self.amax = torch.roll(self.amax, 1)  # guilty: another tensor by the same name
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
    print(y.abs().mean().item())
