"""A replica that reduces its gradients unless `no_sync()` is active, as DDP does."""

from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional


class Replica(nn.Module):
    def __init__(self, module, world_size):
        super().__init__()
        self.module, self.world_size = module, world_size
        self.require_sync = True

    @contextmanager
    def no_sync(self):
        before, self.require_sync = self.require_sync, False  # guilty: replays do not see it
        try:
            yield
        finally:
            self.require_sync = before

    def forward(self, x):
        return self.module(x)

    def backward(self, loss):
        loss.backward()
        if self.require_sync:  # guilty: answered once, while capturing
            flat = torch.cat([p.grad.flatten() for p in self.parameters()])
            flat.div_(self.world_size)  # a sum over one process
            parts = flat.split([p.numel() for p in self.parameters()])
            for p, part in zip(self.parameters(), parts, strict=True):
                p.grad.copy_(part.view_as(p))


torch.manual_seed(0)
model = Replica(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)), 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x = torch.zeros(8, 16, device="cuda")
y = torch.zeros(8, dtype=torch.int64, device="cuda")
for p in model.parameters():
    p.grad = torch.zeros_like(p)


def micro_step():
    loss = functional.cross_entropy(model(x), y)
    model.backward(loss)
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        micro_step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = micro_step()

for update in range(3):
    optimizer.zero_grad(set_to_none=False)
    for micro in range(4):
        x.copy_(torch.randn(8, 16))
        y.copy_(torch.randint(0, 4, (8,)))
        if micro < 3:
            with model.no_sync():  # guilty: the replay reduces all the same
                graph.replay()
        else:
            graph.replay()
    optimizer.step()
    print(update, loss.item())
