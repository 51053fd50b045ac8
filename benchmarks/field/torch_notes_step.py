# /// script
# dependencies = []
# [tool.field]
# package = "torch"
# version = ""
# ///
"""A whole step in a graph, as PyTorch's notes on CUDA describe it, in words of our own.

Without and with a gradient scaler, whose `step` and `update` stay outside of the graph.
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


def whole_step(scaled):
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", enabled=scaled)
    x, target = torch.randn(16, 8, device="cuda"), torch.randn(16, 4, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.float16, enabled=scaled, cache_enabled=False):
            loss = nn.functional.mse_loss(net(x).float(), target)
        scaler.scale(loss).backward()
        if not scaled:
            optimizer.step()
        return loss.detach()

    warm_up(step)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    for _ in range(5):
        x.copy_(torch.randn(16, 8))
        target.copy_(torch.randn(16, 4))
        graph.replay()
        if scaled:
            scaler.step(optimizer)
            scaler.update()
        print("step", round(float(loss), 4))


whole_step(scaled=False)
whole_step(scaled=True)
