# /// script
# dependencies = [
#     "torch-geometric==2.8.1", "aiohttp", "xxhash", "requests", "urllib3", "charset-normalizer",
#     "idna", "certifi", "tqdm", "jinja2", "pyparsing", "psutil", "fsspec", "numpy",
# ]
# [tool.field]
# package = "torch_geometric"
# version = "2.8.1"
# ///
"""Training of a GCN and a GAT: forward, loss, backward and optimizer in one graph."""

import torch
from torch import nn
from torch_geometric.nn import GATConv, GCNConv

torch.manual_seed(0)
NODES, EDGES, WARMUP, STEPS = 20, 60, 3, 8


class Net(nn.Module):
    def __init__(self, layer):
        super().__init__()
        # With self-loops, the number of edges would depend on the data.
        self.first = layer(8, 16, add_self_loops=False)
        self.second = layer(16, 4, add_self_loops=False)

    def forward(self, x, edges):
        return self.second(self.first(x, edges).relu(), edges)


def train(layer, graphed):
    torch.manual_seed(1)
    net = Net(layer).cuda()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, capturable=True)
    x = torch.zeros(NODES, 8, device="cuda")
    edges = torch.zeros(2, EDGES, dtype=torch.long, device="cuda")
    target = torch.zeros(NODES, dtype=torch.long, device="cuda")
    loss = torch.zeros((), device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        result = nn.functional.cross_entropy(net(x, edges), target)
        result.backward()
        optimizer.step()
        loss.copy_(result.detach())

    graph, stream, losses = None, torch.cuda.Stream(), []
    for index in range(STEPS):
        x.copy_(torch.randn(NODES, 8))
        edges.copy_(torch.randint(NODES, (2, EDGES)))
        target.copy_(torch.randint(4, (NODES,)))
        if not graphed or index < WARMUP:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                step()
            torch.cuda.current_stream().wait_stream(stream)
        else:
            if graph is None:
                optimizer.zero_grad(set_to_none=True)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    step()
            graph.replay()
        losses.append(loss.clone())
    return torch.stack(losses)


for layer in (GCNConv, GATConv):
    losses = train(layer, graphed=True)
    print(losses.tolist())
    torch.testing.assert_close(losses, train(layer, graphed=False))
