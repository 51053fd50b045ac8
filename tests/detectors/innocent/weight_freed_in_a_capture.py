"""A weight has memory only while it is used; that of the capture belongs to the graph."""

import torch

shards = torch.randn(4, 12, device="cuda")
full = torch.empty(48, device="cuda")
weight, size = full.view(8, 6), full.untyped_storage().nbytes()
full.untyped_storage().resize_(0)
x = torch.randn(5, 6, device="cuda")


def gathered(x):
    full.untyped_storage().resize_(size)
    torch.cat(shards.unbind(), out=full)
    y = x @ weight.t()
    full.untyped_storage().resize_(0)
    return y


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    gathered(x)
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = gathered(x)
for _ in range(3):
    x.copy_(torch.randn(5, 6))
    graph.replay()
    expected = x @ torch.cat(shards.unbind()).view(8, 6).t()
    assert torch.allclose(y, expected, atol=1e-5)
