"""The script assigns a number to the learning rate before each replay."""

import torch

weight = torch.nn.Parameter(torch.ones(8, device="cuda"))
x = torch.ones(8, device="cuda")
optimizer = torch.optim.SGD([weight], lr=0.1)  # <- optimizer-without-capture-guard
weight.grad = torch.zeros_like(weight)


def step():
    weight.grad.zero_()
    (weight * x).sum().backward()
    optimizer.step()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
for number in range(3):
    for group in optimizer.param_groups:
        group["lr"] = 0.1 / (1 + number)
    graph.replay()
print(weight.sum().item())
