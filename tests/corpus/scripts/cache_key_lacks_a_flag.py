"""Graphs are cached by batch size; whether logits are normalized is a flag beside the key."""

# The graph for two rows was captured without the flag. The key does not contain the flag, so the
# second request replays a graph that does not normalize.

import torch
from torch import nn

model = nn.Linear(4, 4).cuda().eval()
graphs = {}


def forward(x, normalize):
    y = model(x)
    return y.log_softmax(-1) if normalize else y


@torch.no_grad()
def run(rows, normalize=False):
    size = len(rows)
    if size not in graphs:  # guilty: the key lacks the flag
        x = torch.zeros(size, 4, device="cuda")
        forward(x, normalize)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = forward(x, normalize)  # guilty: the flag of the capture
        graphs[size] = graph, x, y
    graph, x, y = graphs[size]
    x.copy_(rows)
    graph.replay()  # guilty: the graph of the other flag
    return y.cpu()


rows = torch.ones(2, 4)
print(run(rows).shape, round(run(rows, normalize=True).exp().sum().item(), 3))
# eager: torch.Size([2, 4]) 2.0
