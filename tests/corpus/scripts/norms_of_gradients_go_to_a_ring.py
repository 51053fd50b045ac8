"""A monitor inside the graph: norms go to a ring on the device, and steps with spikes shrink."""

import torch
from torch import nn
from torch.nn import functional

room = 8
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
x = torch.randn(10, 8, device="cuda")
y = torch.randint(4, (10,), device="cuda")
ring = torch.ones(room, device="cuda")
place = torch.zeros(1, dtype=torch.long, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = functional.cross_entropy(model(x), y)
    loss.backward()
    gradients = [p.grad for p in model.parameters()]
    norm = torch.nn.utils.get_total_norm(gradients)
    usual = ring.median()
    factor = torch.where(norm > 3 * usual, usual / norm, torch.ones_like(norm))
    torch._foreach_mul_(gradients, factor)
    ring.index_copy_(0, place, norm.view(1))
    place.add_(1).remainder_(room)
    optimizer.step()
    return loss.detach()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()

total = torch.zeros((), device="cuda")
for number in range(12):
    x.copy_(torch.randn(10, 8))
    y.copy_(torch.randint(4, (10,)))
    graph.replay()
    total += loss
    if number % room == room - 1:
        print(ring.tolist())
print(total.item() / 12)
