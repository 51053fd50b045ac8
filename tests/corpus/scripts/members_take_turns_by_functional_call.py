"""An ensemble of critics runs through one skeleton; the loop chooses the member by its name."""

import torch
from torch import nn
from torch.func import functional_call

members = [
    {
        name: torch.randn(shape, device="cuda")
        for name, shape in (("weight", (2, 5)), ("bias", (2,)))
    }
    for _ in range(3)
]
skeleton = nn.Linear(5, 2).cuda()
states = torch.randn(4, 5, device="cuda")
current = members[0]


def evaluate():
    return functional_call(skeleton, current, (states,))  # guilty: the member of the capture


with torch.no_grad():
    evaluate()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        values = evaluate()

    spread = []
    for member in members:
        current = member  # guilty: the graph does not see the name
        graph.replay()
        spread.append(values.mean().item())
    print(max(spread) - min(spread))
