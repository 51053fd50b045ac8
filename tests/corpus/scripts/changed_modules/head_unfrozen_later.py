"""Fine-tuning: the optimizer gets a second parameter group after the step was captured."""

# The graph has the update of the parameters that the optimizer had; the backbone never changes.

import torch
from torch import nn

backbone = nn.Linear(4, 4).cuda().requires_grad_(False)
head = nn.Linear(4, 2).cuda()
optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2, capturable=True)
x = torch.randn(8, 4, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = head(backbone(x).relu()).square().mean()  # <- parameters-added-or-removed
    loss.backward()
    optimizer.step()  # <- parameters-added-or-removed


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()

for epoch in range(4):
    if epoch == 2:
        backbone.requires_grad_(True)  # <- parameters-added-or-removed
        optimizer.add_param_group(
            {"params": list(backbone.parameters()), "lr": 1e-3}
        )  # <- parameters-added-or-removed
    x.normal_()
    graph.replay()
print(backbone.weight.sum().item(), head.weight.sum().item())
