"""Tensors that are made of outputs of a graph: of copies, or of each once."""

import torch

x = torch.zeros(4, 8, device="cuda")


def statistics():
    return x.mean(), x.norm()


statistics()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    mean, norm = statistics()

norms, pairs = [], []
for step in range(6):
    x.fill_(step)
    graph.replay()
    norms.append(norm.clone())
    pairs.append(torch.tensor([mean, norm]))
print(torch.tensor(norms).mean(), torch.as_tensor(norms, device="cuda").max(), pairs)
