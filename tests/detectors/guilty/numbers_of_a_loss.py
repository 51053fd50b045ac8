"""Numbers of PyTorch's modules that no op gets as they are."""

import torch
from torch import nn

x = torch.randn(8, 4, device="cuda")
y = torch.randint(0, 4, (8,), device="cuda")


def replay(module, *args):
    module(*args)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = module(*args)
    graph.replay()
    yield
    graph.replay()
    print(result.sum().item())


loss = nn.CrossEntropyLoss(label_smoothing=0.1)
for _ in replay(loss, x, y):
    loss.label_smoothing = 0.0  # <- python-scalar-frozen

plain = nn.CrossEntropyLoss()
for _ in replay(plain, x, y):
    plain.label_smoothing = 0.2  # <- python-scalar-frozen

slope = nn.RReLU(0.1, 0.3).eval()
for _ in replay(slope, x):
    slope.upper = 0.5  # <- python-scalar-frozen

larger = nn.Upsample(scale_factor=2.0)
for _ in replay(larger, x[None]):
    larger.scale_factor = 3.0  # <- python-scalar-frozen
