"""A scheduler moves a learning rate that is a Python number."""

import torch

w = torch.zeros(1, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([w], lr=1.0)  # guilty: its learning rate is a Python number
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.0)
w.grad = torch.ones_like(w)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    optimizer.step()  # guilty: with the learning rate of the capture
for _ in range(3):
    graph.replay()
    scheduler.step()  # guilty: replays do not see it
print(w.item())  # eager: -1.0
