"""The warm-up also steps Adam; weights and moments are put back in place before the capture."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, capturable=True)
x, target = torch.zeros(16, 8, device="cuda"), torch.zeros(16, 1, device="cuda")
initial = [p.detach().clone() for p in model.parameters()]


def train_step():
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.mse_loss(model(x), target)
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        train_step()
torch.cuda.current_stream().wait_stream(side)
with torch.no_grad():
    for p, before in zip(model.parameters(), initial, strict=True):
        p.copy_(before)
        for value in optimizer.state[p].values():
            value.zero_()

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = train_step()

for _ in range(5):
    batch = torch.randn(16, 8, device="cuda")
    x.copy_(batch)
    target.copy_(batch.sum(1, keepdim=True))
    graph.replay()
print(f"{loss.item():.4f}")
