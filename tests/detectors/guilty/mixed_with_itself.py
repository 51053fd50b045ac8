"""Two results of one graph are mixed, chosen between, divided: both are the last one."""

import torch

x = torch.zeros(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2


def run(value):
    x.fill_(value)
    graph.replay()
    return y  # <- output-overwritten-by-next-replay


print(torch.lerp(run(0), run(1), 7.5).tolist())
best = run(2)
later = run(1)
print(torch.where(later > 3, later, best).tolist())
print((run(3) / later).tolist())
print((later * later).sum().item(), (later @ y).item(), torch.where(x > 0, y, -y).tolist())
