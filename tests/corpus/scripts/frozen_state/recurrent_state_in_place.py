"""A recurrent state that lives in a static tensor."""

import torch

x, state = torch.zeros(1, device="cuda"), torch.zeros(1, device="cuda")
state.copy_(0.5 * state + x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    state.copy_(0.5 * state + x)

for value in (4.0, 2.0, 1.0):
    x.fill_(value)
    graph.replay()
print(state.item())  # eager: 3.0
