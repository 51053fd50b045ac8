"""Two results of one graph are equal, since both are the last one."""

import torch

x = torch.zeros(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
graph.replay()
before = y
x.fill_(2)
graph.replay()  # <- output-overwritten-by-next-replay
print((y == before).all().item(), torch.ne(before, y).any().item(), torch.allclose(y, before))


def again():
    graph.replay()  # <- output-overwritten-by-next-replay
    return y


print((again() == again()).all().item())
