"""The rate is a tensor that OneCycleLR fills, but it also cycles the betas, which are numbers."""

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3)).cuda()
rate = torch.tensor(1e-2, device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=True)
scheduler = torch.optim.lr_scheduler.OneCycleLR(  # guilty: betas change in the param group
    optimizer, max_lr=1e-2, total_steps=40
)
x = torch.randn(32, 16, device="cuda")
y = torch.randint(3, (32,), device="cuda")


def train_step():
    optimizer.zero_grad(set_to_none=True)
    loss = functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()  # guilty: the betas of the capture
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        train_step()
torch.cuda.current_stream().wait_stream(side)
optimizer.zero_grad(set_to_none=True)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = train_step()

for step in range(12):
    x.normal_()
    y.random_(3)
    graph.replay()
    scheduler.step()  # guilty: as above
    if step % 4 == 3:
        print(step, loss.item(), float(scheduler.get_last_lr()[0]))
