"""A group of parameters that is added after the capture is never stepped."""

import torch
from torch import nn

head, body = nn.Linear(4, 1).cuda(), nn.Linear(4, 4).cuda()
optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3, capturable=True)
x = torch.randn(2, 4, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = head(body(x)).square().mean()
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
for epoch in range(4):
    if epoch == 2:
        optimizer.add_param_group({"params": body.parameters()})  # <- parameters-added-or-removed
    graph.replay()
print(loss.item())
