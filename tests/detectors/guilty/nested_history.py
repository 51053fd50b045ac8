"""Metrics of each step in a list of dicts, with .detach() as one does."""

import torch
from torch import nn

model = nn.Linear(8, 1).cuda()
x = torch.randn(4, 8, device="cuda")
with torch.no_grad():
    model(x)
graph = torch.cuda.CUDAGraph()
with torch.no_grad(), torch.cuda.graph(graph):
    loss = model(x).square().mean()
log = {"train": []}
for step in range(5):
    x.copy_(torch.randn(4, 8, device="cuda"))
    graph.replay()
    row = {"step": step, "loss": loss.detach()}
    log["train"].append(row)  # <- output-overwritten-by-next-replay
for row in log["train"]:
    print(row["step"], row["loss"].item())
