"""Code that asks whether it is captured, and computes the same in both cases."""

import torch

x = torch.ones(8, 3, device="cuda")
seen = []


def scaled(values):
    if torch.cuda.is_current_stream_capturing():
        return values.mul(2)
    seen.append(values.shape)
    assert values.isfinite().all()
    return values + values


scaled(x)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = scaled(x)
for step in range(4):
    x.copy_(torch.randn(8, 3) + step)
    graph.replay()
    print(y.mean().item(), len(seen))
