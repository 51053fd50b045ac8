"""Hooks write the norms of gradients into a table, which the host reads now and then."""

import torch
from torch import nn


class GradientLog:
    def __init__(self, model):
        self.names = [name for name, _ in model.named_parameters()]
        self.norms = torch.zeros(len(self.names), device="cuda")
        self.largest = torch.zeros(len(self.names), device="cuda")
        for row, parameter in enumerate(model.parameters()):
            parameter.register_post_accumulate_grad_hook(self._hook(row))

    def _hook(self, row):
        def write(parameter):
            norm = parameter.grad.norm()
            self.norms[row].copy_(norm)
            self.largest[row].copy_(torch.maximum(self.largest[row], norm))

        return write

    def report(self):
        rows = torch.stack([self.norms, self.largest]).T.tolist()
        self.largest.zero_()
        return dict(zip(self.names, rows, strict=True))


torch.manual_seed(11)
model = nn.Sequential(nn.Linear(10, 20), nn.LayerNorm(20), nn.SiLU(), nn.Linear(20, 2)).cuda()
log = GradientLog(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
x, y = torch.randn(32, 10, device="cuda"), torch.randn(32, 2, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    nn.functional.huber_loss(model(x), y).backward()
    optimizer.step()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()

log.report()
for number in range(1, 13):
    x.normal_()
    graph.replay()
    if number % 4 == 0:
        print(number, {name: round(top, 3) for name, (_, top) in log.report().items()})
