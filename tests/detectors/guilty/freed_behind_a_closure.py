"""A factory forgets the model, or the buffers, that the captured function has in its closure."""

import torch
from torch import nn


def graphed(function, x):
    function(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = function(x)

    def run(new):
        x.copy_(new)
        graph.replay()
        return y

    return run


def load():
    model = nn.Linear(4, 4).cuda().requires_grad_(False)

    def forward(x):
        return model(x).relu()  # <- input-freed-before-replay

    return graphed(forward, torch.zeros(2, 4, device="cuda"))


def load_scales():
    scales = [torch.rand(4, device="cuda") for _ in range(2)]

    def forward(x):
        for scale in scales:
            x = x * scale  # <- input-freed-before-replay
        return x

    return graphed(forward, torch.zeros(2, 4, device="cuda"))


runs = load(), load_scales()
for _ in range(3):
    print([run(torch.randn(2, 4)).sum().item() for run in runs])
