"""The classes of a few-shot classifier are a Python list of prototypes, sorted anew per episode."""

# `torch.stack` reads the tensors that the list held while capturing, in that order.

import torch

prototypes = [torch.full((4,), float(i), device="cuda") for i in range(3)]
query = torch.zeros(2, 4, device="cuda")


def classify():
    centers = torch.stack(prototypes)  # <- metadata-address-changed
    return torch.cdist(query, centers).argmin(-1)


classify()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    label = classify()

for episode in range(2):
    if episode:
        prototypes.reverse()  # <- metadata-address-changed
    query.fill_(2.0)
    graph.replay()
    print(label.tolist())
