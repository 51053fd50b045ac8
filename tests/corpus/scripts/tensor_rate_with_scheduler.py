"""A learning rate on the device, which the scheduler fills."""

import torch

w = torch.zeros(1, device="cuda", requires_grad=True)
rate = torch.tensor(1.0, device="cuda")
optimizer = torch.optim.Adam([w], lr=rate, betas=(0.0, 0.0), eps=0.0, capturable=True)
w.grad = torch.ones_like(w)
optimizer.step()
with torch.no_grad():
    w.zero_()
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    optimizer.step()
for _ in range(3):
    graph.replay()
    scheduler.step()
print(w.item())  # eager: -1.75
