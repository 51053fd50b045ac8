"""A generator of its own, registered with the graph."""

import torch

generator = torch.Generator(device="cuda").manual_seed(5)
graph = torch.cuda.CUDAGraph()
graph.register_generator_state(generator)
torch.rand(2, device="cuda", generator=generator)
with torch.cuda.graph(graph):
    y = torch.rand(1000, device="cuda", generator=generator)

graph.replay()
first = y.clone()
graph.replay()
print(torch.equal(first, y))  # eager: False
