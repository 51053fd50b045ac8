"""An engine owns the merged weights and merges another adapter into the same memory."""

import torch
from torch import nn
from torch.func import functional_call


class Engine:
    def __init__(self, base, x):
        self.base, self.x = base, x
        self.weights = {name: p.detach().clone() for name, p in base.named_parameters()}

    def forward(self):
        return functional_call(self.base, self.weights, (self.x,))

    def capture(self):
        self.forward()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.y = self.forward()

    def merge(self, adapter):
        for name, p in self.base.named_parameters():
            if name in adapter:
                up, down = adapter[name]
                torch.addmm(p, up, down, alpha=0.5, out=self.weights[name])
            else:
                self.weights[name].copy_(p)

    def __call__(self, x):
        self.x.copy_(x)
        self.graph.replay()
        return self.y.clone()


def adapter(names, width=64, rank=4):
    return {
        name: (torch.randn(width, rank).cuda(), torch.randn(rank, width).cuda() / width)
        for name in names
    }


torch.manual_seed(0)
with torch.no_grad():
    base = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).cuda()
    engine = Engine(base, torch.zeros(2, 64, device="cuda"))
    engine.capture()
    adapters = [adapter(["0.weight"]), adapter(["0.weight", "2.weight"]), adapter([])]
    for number, each in enumerate(adapters):
        engine.merge(each)
        print(number, engine(torch.ones(2, 64)).norm().item())
