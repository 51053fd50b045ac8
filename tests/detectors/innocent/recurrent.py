"""The output is fed back as the next input; the first row of each result is kept by value."""

import torch

state = torch.zeros(2, 8, device="cuda")
weight = torch.randn(8, 8, device="cuda") / 4
torch.tanh(state @ weight + 1)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = torch.tanh(state @ weight + 1)
trace = []
for _ in range(4):
    graph.replay()
    state.copy_(out)
    trace.append(out[0].tolist())
print(len(trace))
