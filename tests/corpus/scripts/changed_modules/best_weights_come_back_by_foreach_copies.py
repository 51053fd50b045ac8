"""Early stopping: the best weights are kept by one fused copy, and come back by another."""

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
x, y = torch.randn(16, 6, device="cuda"), torch.randn(16, 1, device="cuda")
held_x, held_y = torch.randn(16, 6, device="cuda"), torch.randn(16, 1, device="cuda")
tracked = [t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]
best_tensors = [t.detach().clone() for t in tracked]

model.eval()
with torch.no_grad():
    functional.mse_loss(model(held_x), held_y)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        validation_loss = functional.mse_loss(model(held_x), held_y)

best, patience = float("inf"), 3
for _epoch in range(10):
    model.train()
    optimizer.zero_grad(set_to_none=True)
    functional.mse_loss(model(x), y).backward()
    optimizer.step()
    model.eval()
    graph.replay()
    now = validation_loss.item()
    patience -= 1
    if now < best:
        best, patience = now, 3
        torch._foreach_copy_(best_tensors, [t.detach() for t in tracked])
    if not patience:
        break

with torch.no_grad():
    torch._foreach_copy_(tracked, best_tensors)
graph.replay()
print(abs(best - validation_loss.item()) < 1e-6)
