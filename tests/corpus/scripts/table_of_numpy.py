"""A NumPy table of loss weights is updated between epochs."""

import numpy as np
import torch

weights = np.array([1.0, 1.0])
losses = torch.tensor([1.0, 10.0], device="cuda")


def total():
    return losses[0] * weights[0] + losses[1] * weights[1]  # guilty: numbers of the capture


total()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = total()

weights[1] = 0.1  # guilty: replays do not see it
graph.replay()
print(y.item())  # eager: 2.0
