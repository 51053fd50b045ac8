"""A server sets the adapter of each request by name; the graph keeps the first one."""

import torch
from torch import nn


class Adapted(nn.Module):
    def __init__(self, base, names, rank=4):
        super().__init__()
        self.base = base
        self.down = nn.ModuleDict({n: nn.Linear(base.in_features, rank, bias=False) for n in names})
        self.up = nn.ModuleDict({n: nn.Linear(rank, base.out_features, bias=False) for n in names})
        self.active = names[0]

    def set_adapter(self, name):
        self.active = name  # guilty: the graph keeps the adapter of the capture

    def forward(self, x):
        name = self.active  # guilty: read once
        return self.base(x) + self.up[name](self.down[name](x))  # guilty: as above


class Server:
    def __init__(self, model, size):
        self.model = model
        self.x = torch.zeros(2, size, device="cuda")
        for _ in range(2):
            model(self.x)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.y = model(self.x)

    def answer(self, adapter, x):
        for module in self.model.modules():
            if isinstance(module, Adapted):
                module.set_adapter(adapter)  # guilty: as above
        self.x.copy_(x)
        self.graph.replay()
        return self.y.clone()


torch.manual_seed(3)
names = ["support", "legal", "code"]
model = nn.Sequential(
    Adapted(nn.Linear(12, 12), names), nn.SiLU(), Adapted(nn.Linear(12, 6), names)
)
server = Server(model.cuda().requires_grad_(False), 12)
question = torch.randn(2, 12, device="cuda")
for name in ["support", "code", "legal"]:
    print(name, server.answer(name, question).norm().item())
