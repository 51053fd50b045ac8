"""Each stage of a detector's training has its graph; the second trains the head only."""

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)
backbone, head = nn.Linear(16, 32).cuda(), nn.Linear(32, 4).cuda()
x, y = torch.randn(32, 16, device="cuda"), torch.randint(0, 4, (32,), device="cuda")


def captured(parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.1)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(head(backbone(x).relu()), y)
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
    return graph, loss


graph, loss = captured([*backbone.parameters(), *head.parameters()])
for _ in range(5):
    graph.replay()
print(1, loss.item(), backbone.weight.norm().item())
backbone.requires_grad_(False)
graph, loss = captured(list(head.parameters()))
for _ in range(5):
    graph.replay()
print(2, loss.item(), backbone.weight.norm().item())
