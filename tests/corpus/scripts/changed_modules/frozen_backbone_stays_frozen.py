"""Fine-tuning: a second optimizer, outside of the graph, trains what the graph does not touch."""

# The captured step has all of its own parameters; the temperature is trained eagerly.

import torch
from torch import nn

backbone = nn.Linear(4, 4).cuda().requires_grad_(False)
head = nn.Linear(4, 2).cuda()
temperature = nn.Parameter(torch.ones((), device="cuda"))
optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2, capturable=True)
other = torch.optim.SGD([temperature], lr=1e-2)
x = torch.randn(8, 4, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    logits = head(backbone(x).relu())
    loss = logits.square().mean()
    loss.backward()
    optimizer.step()
    return logits.detach()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    logits = step()

for epoch in range(4):
    x.normal_()
    graph.replay()
    if epoch == 2:
        other.param_groups[0]["lr"] = 1e-3
    other.zero_grad()
    (logits / temperature).square().mean().backward()
    other.step()
print(temperature.item(), head.weight.sum().item())
