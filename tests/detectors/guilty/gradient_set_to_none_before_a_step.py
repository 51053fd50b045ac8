"""A gradient that the graph adds to is gone: one finding, and not another one for its memory."""

import torch

w = torch.nn.Parameter(torch.ones(4, device="cuda"))
w.grad = torch.zeros_like(w)
opt = torch.optim.SGD([w], lr=0.1)


def run():
    loss = w.square().sum()
    loss.backward()


run()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    run()
for _ in range(3):
    graph.replay()
    opt.step()
    opt.zero_grad()  # <- grad-set-to-none-between-replays
print(w.tolist())
