"""Host settings change between replays, none of which the captured code reads."""

import os

import torch

settings = {"scale": 2.0, "verbose": False}
x = torch.ones(1, device="cuda")


def run():
    return x * settings["scale"]


run()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = run()

for number in range(3):
    settings["verbose"] = number > 1
    os.environ["MY_PROGRESS"] = str(number)
    x.fill_(number)
    graph.replay()
print(y.item())  # eager: 4.0
