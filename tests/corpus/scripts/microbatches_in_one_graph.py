"""Several microbatches accumulate into gradients inside one graph; the inputs are one stack."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=True, fused=True)
x = torch.randn(4, 6, 8, device="cuda")
y = torch.randint(2, (4, 6), device="cuda")
total = torch.zeros((), device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    total.zero_()
    for inputs, labels in zip(x, y, strict=True):
        loss = nn.functional.cross_entropy(model(inputs), labels) / len(x)
        loss.backward()
        total.add_(loss.detach())
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
    optimizer.step()
    return norm


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    norm = step()
seen, best = 0, float("inf")
for _ in range(4):
    x.normal_()
    y.random_(2)
    graph.replay()
    seen += x.shape[0] * x.shape[1]
    best = min(best, total.item())
print(seen, best, norm.item())
