"""The answer is copied to pinned memory, and printed before the copy has ended."""

import torch

x = torch.ones(1024, device="cuda")
answer = torch.empty(1024, pin_memory=True)
graph = torch.cuda.CUDAGraph()
x.exp()
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    y = x * 2
    answer.copy_(y, non_blocking=True)
for number in range(3):
    x.fill_(number)
    graph.replay()
    print(answer.sum().item())  # guilty: nobody waited for the replay
