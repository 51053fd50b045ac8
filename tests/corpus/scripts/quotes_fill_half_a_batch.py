"""A pricing service has a graph for sixteen quotes and fills as many rows as there are."""

import torch

device = "cuda"
quotes = torch.ones(16, 2, device=device)
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        (quotes[:, 1] - quotes[:, 0]).mean()
torch.cuda.current_stream().wait_stream(side)

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    spread = (quotes[:, 1] - quotes[:, 0]).mean()

for count in (16, 8):
    arrived = torch.stack((torch.zeros(count), torch.full((count,), 16.0 / count)), 1)
    quotes[:count].copy_(arrived)  # guilty: the same
    graph.replay()  # guilty: eight rows are of the quotes before, and the mean counts them
    print(spread.item())  # guilty: the same
    # eager: 1.0
    # eager: 2.0
