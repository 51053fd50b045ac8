"""A step counter on the host decides what is logged, and nothing else."""

import torch

x = torch.ones(1, device="cuda")
total = torch.zeros(1, device="cuda")
total.add_(x)
total.zero_()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    total.add_(x)

step, lines = 0, []
while step < 10:
    graph.replay()
    step += 1
    if step % 5 == 0:
        lines.append(f"{step}: {total.item():.1f}")
print("; ".join(lines))  # eager: 5: 5.0; 10: 10.0
