"""The correction of a moving average is a tensor of the host."""

import torch

average = torch.ones(2, device="cuda")
step = 0


def corrected():
    global step
    step += 1  # guilty: a replay does not count
    return average / torch.tensor(1 - 0.5**step)  # guilty: a constant of the graph


corrected()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = corrected()
values = []
for _ in range(2):
    graph.replay()
    values.append(round(y[0].item(), 4))
print(values)  # eager: [1.3333, 1.1429]
