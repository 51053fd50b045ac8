# /// script
# dependencies = []
# [tool.field]
# package = "torch"
# version = ""
# ///
"""Parts of a model in graphs, as PyTorch's notes on CUDA describe it, in words of our own.

Several graphs that share a memory pool; graphed callables, of which data choose one.
"""

import torch
from torch import nn

torch.manual_seed(0)


def warm_up(work):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)


def network():
    layers = nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 4), nn.Dropout(0.1)
    return nn.Sequential(*layers).cuda()


def shared_pool():
    one, two = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    x, layer = torch.zeros(4, 8, device="cuda"), nn.Linear(8, 8).cuda()
    with torch.no_grad():
        warm_up(lambda: layer(layer(x)))
        with torch.cuda.graph(one):
            y = layer(x)
        with torch.cuda.graph(two, pool=one.pool()):
            z = layer(y)
        for value in range(3):
            x.fill_(value)
            one.replay()
            two.replay()
            torch.testing.assert_close(z, layer(layer(x)))


def partial_network():
    first, second, third = network(), network(), network()
    join = nn.Linear(4, 8).cuda()
    whole = nn.ModuleList([first, join, second, third])
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    x, h = torch.randn(16, 8, device="cuda"), torch.randn(16, 8, device="cuda")
    h.requires_grad_()
    first = torch.cuda.make_graphed_callables(first, (x,))
    second, third = torch.cuda.make_graphed_callables((second, third), ((h,), (h,)))
    for _ in range(5):
        optimizer.zero_grad(set_to_none=True)
        hidden = join(first(torch.randn(16, 8, device="cuda")))
        branch = second if hidden.sum().item() > 0 else third
        branch(hidden).square().mean().backward()
        optimizer.step()


shared_pool()
partial_network()
