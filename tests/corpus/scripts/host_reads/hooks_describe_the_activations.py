"""A debugging helper: hooks that describe the output of each layer are left on the model."""

import torch
from torch import nn


class Describer:
    def __init__(self, model):
        self.lines = []
        self.handles = [
            layer.register_forward_hook(self.describe)
            for layer in model.modules()
            if not list(layer.children())
        ]

    def describe(self, layer, inputs, output):
        kind = type(layer).__name__
        shape = "x".join(map(str, output.shape))
        self.lines.append(
            f"{kind} {shape} largest {output.abs().max():.3f}"
        )  # <- sync-print-or-format

    def remove(self):
        for handle in self.handles:
            handle.remove()


model = nn.Sequential(
    nn.Conv1d(2, 8, 5, stride=2),
    nn.GELU(),
    nn.Conv1d(8, 8, 3),
    nn.AdaptiveAvgPool1d(1),
    nn.Flatten(),
)
model.cuda().eval().requires_grad_(False)
describer = Describer(model)
signal = torch.randn(3, 2, 40, device="cuda")
model(signal)
print("\n".join(describer.lines))

torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    embedding = model(signal)
describer.remove()
for _ in range(3):
    signal.copy_(torch.randn(3, 2, 40))
    graph.replay()
    print(embedding.norm().item())
