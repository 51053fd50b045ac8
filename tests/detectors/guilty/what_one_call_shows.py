"""Host state that each call changes, as one call of the captured code shows: on a GPU it is not
called again."""

import torch
from torch import nn

cell = nn.GRUCell(8, 8).cuda()
states = [torch.zeros(4, 8, device="cuda")]
history = []
temperature = torch.tensor(1.0)
x = torch.randn(4, 8, device="cuda")


@torch.no_grad()
def advanced(x):
    states.append(cell(x, states[-1]))  # <- python-side-effects-skipped
    return states[-1]


def centered(x):
    history.append(x.mean())  # <- python-side-effects-skipped
    return x - torch.stack(history[-4:]).mean()


def cooled(x):
    temperature.mul_(0.9)
    return x / temperature  # <- cpu-work-in-region


for step in (advanced, centered, cooled):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step(x)
    for _ in range(3):
        x.mul_(0.9)
        graph.replay()
        print(out.sum().item())
