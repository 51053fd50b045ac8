"""One function captures two models into one pool; the first one runs again before the output of the
second is read."""

import torch
from torch import nn

torch.manual_seed(0)
draft = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
target = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)).cuda()
a, b = (torch.zeros(4, 64, device="cuda") for _ in range(2))
pool = torch.cuda.graph_pool_handle()


def captured(model, x):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        model(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        y = model(x)
    return graph, y


with torch.no_grad():
    drafts, proposed = captured(draft, a)
    targets, accepted = captured(target, b)
    for _ in range(3):
        b.normal_()
        a.copy_(b)
        targets.replay()
        for _ in range(2):
            drafts.replay()  # <- shared-pool-replay-order
            a.add_(proposed)
        print((accepted.argmax(-1) == proposed.argmax(-1)).sum().item())
