"""Each stage of a training has a graph of its own."""

import torch
from torch import nn

backbone, head = nn.Linear(4, 4).cuda().requires_grad_(False), nn.Linear(4, 1).cuda()
x = torch.randn(4, 4, device="cuda")


def capture():
    def forward_backward():
        loss = head(backbone(x)).square().mean()
        loss.backward()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        forward_backward()
    torch.cuda.current_stream().wait_stream(side)
    for m in (backbone, head):
        m.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = forward_backward()
    return graph, loss


optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.1)
graph, loss = capture()
for _ in range(3):
    x.normal_()
    graph.replay()
    optimizer.step()
backbone.requires_grad_(True)
graph, loss = capture()
for _ in range(3):
    x.normal_()
    graph.replay()
    optimizer.step()
print(loss.item())
