"""zero_grad() between replays drops the gradients that the graph writes."""

import torch

w = torch.ones(2, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([w], lr=1.0)
w.sum().backward()
optimizer.zero_grad()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    (w * w).sum().backward()

for _ in range(3):
    optimizer.zero_grad()  # <- grad-set-to-none-between-replays
    graph.replay()  # <- grad-set-to-none-between-replays
    optimizer.step()
print(w.tolist())  # eager: [-1.0, -1.0]
