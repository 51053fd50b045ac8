"""Autocast around replays of graphs that were captured with it, that use it themselves, or that it
would not change; settings that are the same again at the replay."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 4).cuda().eval()
x = torch.randn(2, 8, device="cuda")


def captured(function):
    with torch.no_grad():
        function()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            return graph, function()


def casts_itself():
    with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
        return model(x)


inside = captured(casts_itself)
with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
    around = captured(lambda: model(x))
plain = captured(lambda: x.relu() * 2)
exact = captured(lambda: x.cumsum(0))

around[0].replay()
with torch.autocast("cuda", dtype=torch.bfloat16):
    for graph, out in (inside, around, plain):
        graph.replay()
        print(out.float().sum().item())
torch.use_deterministic_algorithms(True)
torch.use_deterministic_algorithms(False)
exact[0].replay()
print(exact[1].sum().item())
