import torch
from torch import nn


class LoraLinear(nn.Module):
    def __init__(self, features, names, rank=4):
        super().__init__()
        self.base = nn.Linear(features, features)
        self.a = nn.ParameterDict({n: nn.Parameter(torch.randn(features, rank)) for n in names})
        self.b = nn.ParameterDict({n: nn.Parameter(torch.randn(rank, features)) for n in names})
        self.active = names[0]

    def forward(self, x):
        return (
            self.base(x) + x @ self.a[self.active] @ self.b[self.active]
        )  # <- python-scalar-frozen


class LoraServer:
    def __init__(self, model, names):
        self.model, self.names = model, names
        self.requests = 0

    def set_adapter(self, name):
        for module in self.model.modules():
            if isinstance(module, LoraLinear):
                module.active = name  # <- python-scalar-frozen

    @torch.no_grad()
    def handle(self, x):
        self.set_adapter(self.names[self.requests % len(self.names)])  # <- python-scalar-frozen
        self.requests += 1  # <- python-scalar-frozen
        return self.model(x)


def lora_round_robin(device):
    names = ["sql", "chat", "code"]
    model = nn.Sequential(LoraLinear(32, names), nn.GELU(), LoraLinear(32, names)).to(device)
    return LoraServer(model, names).handle, (torch.randn(8, 32, device=device),)
