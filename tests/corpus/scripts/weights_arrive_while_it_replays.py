"""Online learning: new weights arrive on an upload stream, into the parameters of the graph."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)).cuda().requires_grad_(False)
x = torch.zeros(8, 32, device="cuda")
uploads = torch.cuda.Stream()
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    model(x)
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = model(x)


def receive(version):
    return [torch.full(p.shape, 0.01 * version).pin_memory() for p in model.parameters()]


answers = []
for version in range(3):
    fresh = receive(version)
    with torch.cuda.stream(uploads):
        for p, value in zip(model.parameters(), fresh, strict=True):
            p.copy_(
                value, non_blocking=True
            )  # guilty: neither waits for a replay nor is waited for
    x.normal_()
    graph.replay()  # guilty: the weights are being written
    answers.append(y.sum())
torch.cuda.synchronize()
print([answer.item() for answer in answers])
