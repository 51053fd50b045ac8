"""A monitor lists the norm of the gradients of each step, and looks for spikes at the end."""

import torch
from torch import nn
from torch.nn import functional

model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
x = torch.randn(10, 8, device="cuda")
y = torch.randint(4, (10,), device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = functional.cross_entropy(model(x), y)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss, norm


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss, norm = step()


class Monitor:
    def __init__(self):
        self.norms = []

    def record(self, value):
        self.norms.append(value.detach())  # guilty: the same memory each time

    def spikes(self):
        norms = torch.stack(self.norms)  # guilty: all are the last norm
        return (norms > 3 * norms.median()).sum().item()


monitor = Monitor()
for _ in range(8):
    x.copy_(torch.randn(10, 8))
    y.copy_(torch.randint(4, (10,)))
    graph.replay()
    monitor.record(norm)
print(loss.item(), monitor.spikes())
