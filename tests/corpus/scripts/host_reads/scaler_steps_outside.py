"""Mixed precision: scaled forward and backward are captured; GradScaler steps eagerly."""

# `scaler.scale` multiplies with the scale tensor on the device, which `update` changes in place.

import torch
from torch import nn

model = nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
scaler = torch.amp.GradScaler("cuda", init_scale=128.0, growth_interval=2)
x = torch.randn(4, 8, device="cuda")


def forward_backward():
    optimizer.zero_grad(set_to_none=False)
    with torch.autocast("cuda", dtype=torch.float16, cache_enabled=False):
        loss = model(x).float().square().mean()
    scaler.scale(loss).backward()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        forward_backward()
        scaler.step(optimizer)
        scaler.update()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = forward_backward()
for _ in range(5):
    x.normal_()
    graph.replay()
    scaler.step(optimizer)
    scaler.update()
print(loss.item(), scaler.get_scale())
