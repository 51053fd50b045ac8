"""A backbone is unfrozen after the step was captured: its gradients never come."""

import torch
from torch import nn

backbone, head = nn.Linear(8, 8).cuda().requires_grad_(False), nn.Linear(8, 1).cuda()
x = torch.randn(4, 8, device="cuda")


def forward_backward():
    loss = head(backbone(x)).square().mean()
    loss.backward()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        forward_backward()
torch.cuda.current_stream().wait_stream(side)
head.zero_grad(set_to_none=True)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = forward_backward()
optimizer = torch.optim.AdamW([*backbone.parameters(), *head.parameters()], lr=1e-2)
for step in range(10):
    if step == 5:
        backbone.requires_grad_(True)  # <- parameters-added-or-removed
    x.copy_(torch.randn(4, 8, device="cuda"))
    graph.replay()
    optimizer.step()
print(loss.item())
