"""Two results of one graph are equal, since both are the last one."""

import torch

x = torch.zeros(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
graph.replay()
before = y  # <- output-overwritten-by-next-replay
x.fill_(2)
graph.replay()
print((y == before).all().item(), torch.ne(before, y).any().item(), torch.allclose(y, before))


def again():
    graph.replay()
    return y  # <- output-overwritten-by-next-replay


print((again() == again()).all().item())
