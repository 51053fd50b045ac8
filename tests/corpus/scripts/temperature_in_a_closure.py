"""A sampler whose temperature lives in a closure, with a setter."""

import torch


def make_sampler(logits):
    temperature = 1.0

    def scaled():
        return logits / temperature  # guilty: a number of the capture

    def set_temperature(value):
        nonlocal temperature
        temperature = value  # guilty: replays do not see it

    return scaled, set_temperature


scaled, set_temperature = make_sampler(torch.full((2,), 8.0, device="cuda"))
scaled()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = scaled()
set_temperature(4.0)
graph.replay()
print(y.tolist())  # eager: [2.0, 2.0]
