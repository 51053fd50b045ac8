"""Micro-batches that add up in gradients which exist at the capture, zeroed in place each step."""

import torch

model = torch.nn.Linear(8, 1).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
x = torch.zeros(4, 8, device="cuda")
for parameter in model.parameters():
    parameter.grad = torch.zeros_like(parameter)
model(x).square().mean().backward()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    model(x).square().mean().backward()
for _ in range(3):
    optimizer.zero_grad(set_to_none=False)
    for _ in range(2):
        x.normal_()
        graph.replay()
    optimizer.step()
print(model.weight.abs().sum().item())
