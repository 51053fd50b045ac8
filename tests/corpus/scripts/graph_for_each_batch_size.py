"""One graph for each batch size, captured when it is first needed."""

import torch

graphs = {}


def double_sum(batch):
    if len(batch) not in graphs:
        x = torch.empty_like(batch)
        x.copy_(batch)
        (2 * x).sum()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = (2 * x).sum()
        graphs[len(batch)] = graph, x, y
    graph, x, y = graphs[len(batch)]
    x.copy_(batch)
    graph.replay()
    return y.item()


sizes = [4, 2, 4, 2]
print([double_sum(torch.ones(n, device="cuda") * n) for n in sizes])  # eager: [32, 8, 32, 8]
