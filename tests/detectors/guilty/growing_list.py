"""A plain list of functions that are applied; a plug-in is added later."""

import torch

transforms = [torch.sin, torch.cos]


def apply_all(x):
    for transform in transforms:
        x = transform(x)
    return x


x = torch.randn(16, device="cuda")
g = torch.cuda.CUDAGraph()
apply_all(x)
with torch.cuda.graph(g):
    out = apply_all(x)
g.replay()
transforms.append(torch.tanh)  # <- control-flow-frozen
g.replay()
print(out.cpu())
