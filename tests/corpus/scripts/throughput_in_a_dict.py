"""The captured step also counts samples in a dictionary, from which the throughput is printed."""

import time
from collections import defaultdict

import torch
from torch import nn

meters = defaultdict(int)
model = nn.Linear(32, 32).cuda()
opt = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)
x = torch.randn(64, 32, device="cuda")


def step():
    opt.zero_grad(set_to_none=True)
    loss = (model(x) - x).abs().mean()
    loss.backward()
    opt.step()
    meters["samples"] += x.shape[0]  # guilty: counts captures, not replays
    return loss


s = torch.cuda.Stream()
s.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(s):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(s)
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    loss = step()
meters.clear()
start = time.perf_counter()
for _ in range(20):
    x.normal_()
    g.replay()
torch.cuda.synchronize()
seconds = time.perf_counter() - start
print(f"loss {loss.item():.3f}, {meters['samples'] / seconds:.0f} samples a second")  # guilty: 0
