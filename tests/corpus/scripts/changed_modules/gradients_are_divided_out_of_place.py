"""Forward and backward are a graph; between it and the eager step gradients become their mean."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.zeros(32, 8, device="cuda")


def forward_backward():
    loss = model(x).square().sum()
    loss.backward()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        forward_backward()
        optimizer.zero_grad(set_to_none=True)
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = forward_backward()

for _ in range(4):
    x.copy_(torch.randn(32, 8, device="cuda"))
    graph.replay()
    for p in model.parameters():
        p.grad = p.grad / len(x)  # <- grad-set-to-none-between-replays
    optimizer.step()
print(loss.item())
