"""Early stopping: the best weights come back through `torch.utils.swap_tensors`."""

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)
model = nn.Linear(6, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.8)
x, y = torch.randn(16, 6, device="cuda"), torch.randn(16, 1, device="cuda")
held_x, held_y = torch.randn(16, 6, device="cuda"), torch.randn(16, 1, device="cuda")


def validate():
    return functional.mse_loss(model(held_x), held_y)


with torch.no_grad():
    validate()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        validation_loss = validate()

best, best_weights = float("inf"), None
for _epoch in range(6):
    optimizer.zero_grad()
    functional.mse_loss(model(x), y).backward()
    optimizer.step()
    graph.replay()
    now = validation_loss.item()
    if now < best:
        best = now
        best_weights = [nn.Parameter(p.detach().clone()) for p in model.parameters()]

optimizer.zero_grad(set_to_none=True)
del optimizer
for p, kept in zip(model.parameters(), best_weights, strict=True):
    torch.utils.swap_tensors(p, kept)  # guilty: the graph reads the memory of before
graph.replay()
print(best, validation_loss.item())
