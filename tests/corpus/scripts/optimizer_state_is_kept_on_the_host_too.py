"""A bad update is undone: the optimizer's state and the weights go back in place."""

import torch
from torch import nn


class Snapshot:
    """Weights and optimizer state of the last good step, on the host."""

    def __init__(self, model, optimizer):
        self.tensors = [*model.parameters()]
        for state in optimizer.state.values():
            self.tensors += [value for value in state.values() if torch.is_tensor(value)]
        self.copies = [torch.empty_like(each, device="cpu") for each in self.tensors]
        self.take()

    @torch.no_grad()
    def take(self):
        for copy, tensor in zip(self.copies, self.tensors, strict=True):
            copy.copy_(tensor)

    @torch.no_grad()
    def restore(self):
        for copy, tensor in zip(self.copies, self.tensors, strict=True):
            tensor.copy_(copy)


model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
x, advantage = torch.randn(16, 8, device="cuda"), torch.randn(16, 1, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = -(model(x) * advantage).mean()
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)

graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    loss = step()

snapshot = Snapshot(model, optimizer)
for iteration in range(12):
    x.copy_(torch.randn(16, 8))
    advantage.copy_(torch.randn(16, 1))
    graph.replay()
    if iteration % 3 == 2:
        if abs(loss.item()) > 0.2:
            snapshot.restore()
        else:
            snapshot.take()
