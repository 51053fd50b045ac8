"""Loss weights live in a numpy array that is updated between epochs."""

import numpy as np
import torch

weights = np.array([1.0, 0.5, 0.25])


def loss_of(parts):
    total = parts[0] * float(weights[0])
    for index in range(1, len(weights)):
        total = total + parts[index] * float(weights[index])
    return total


parts = [torch.rand(4, device="cuda") for _ in range(3)]
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = loss_of(parts)
graph.replay()
weights *= 2.0  # <- python-scalar-frozen
graph.replay()
print(loss.tolist())
