"""The same with an event."""

import torch

x = torch.ones(1024, device="cuda")
answer = torch.empty(1024, pin_memory=True)
graph = torch.cuda.CUDAGraph()
done = torch.cuda.Event()
x.exp()
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    y = x * 2
    answer.copy_(y, non_blocking=True)
for number in range(3):
    x.fill_(number)
    graph.replay()
    done.record()
    while not done.query():
        pass
    print(answer.sum().item())  # eager: 0.0
# eager: 2048.0
# eager: 4096.0
