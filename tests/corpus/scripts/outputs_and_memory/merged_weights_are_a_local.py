"""An adapter is merged for serving; nothing holds the merged weights but the capture's frame."""

import torch
from torch import nn
from torch.func import functional_call


class Adapted(nn.Module):
    def __init__(self, width=64, rank=4):
        super().__init__()
        self.base = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.down = nn.ParameterDict()
        self.up = nn.ParameterDict()
        for name, p in self.base.named_parameters():
            if p.ndim == 2:
                key = name.replace(".", "_")
                self.down[key] = nn.Parameter(torch.randn(rank, width) / width)
                self.up[key] = nn.Parameter(torch.randn(width, rank) / rank)

    def merged(self):
        weights = {}
        for name, p in self.base.named_parameters():
            key = name.replace(".", "_")
            weights[name] = p + self.up[key] @ self.down[key] if key in self.up else p
        return weights


def capture(model, x):
    weights = model.merged()  # <- input-freed-before-replay
    functional_call(model.base, weights, (x,))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = functional_call(model.base, weights, (x,))  # <- input-freed-before-replay
    return graph, y


torch.manual_seed(0)
with torch.no_grad():
    model = Adapted().cuda()
    x = torch.randn(2, 64, device="cuda")
    graph, y = capture(model, x)
    for step in range(3):
        x.copy_(torch.randn(2, 64, device="cuda"))
        scratch = torch.randn(64, 64, device="cuda")
        graph.replay()
        print(step, y.norm().item(), scratch.norm().item())
