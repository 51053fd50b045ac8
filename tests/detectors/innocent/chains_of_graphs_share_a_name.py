"""Each graph of a chain reads what the one before has left under a name, and gives it a new one."""

import torch
from torch import nn


class Chain:
    def __init__(self):
        self.encode, self.decode = nn.Linear(8, 8).cuda(), nn.Linear(8, 8).cuda()
        self.x = torch.zeros(4, 8, device="cuda")
        self.first, self.second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        self.decode(self.encode(self.x))
        torch.cuda.synchronize()
        with torch.cuda.graph(self.first):
            self.h = self.encode(self.x)
        with torch.cuda.graph(self.second, pool=self.first.pool()):
            self.h = self.decode(self.h)

    def __call__(self, x):
        self.x.copy_(x)
        self.first.replay()
        self.second.replay()
        return self.h.clone()


layers = [nn.Linear(8, 8).cuda(), nn.Linear(8, 8).cuda()]
state = {"h": torch.zeros(4, 8, device="cuda")}
x = state["h"]


def run(layer):
    state["h"] = layer(state["h"])


def captured(layer):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(layer)
    return graph


torch.set_grad_enabled(False)
chain = Chain()
graphs = [captured(layer) for layer in layers]

outputs = [x]
last, final = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
with torch.cuda.graph(last):
    outputs.append(layers[1](outputs[-1]))
with torch.cuda.graph(final, pool=last.pool()):
    outputs.append(layers[0](outputs[-1]))

for _ in range(3):
    print(chain(torch.randn(4, 8, device="cuda")).sum().item())
    x.normal_()
    for graph in (*graphs, last, final):
        graph.replay()
    print(state["h"].sum().item(), outputs[-1].sum().item())
