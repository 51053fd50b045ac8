"""Blocks that could run again: they would compute what a replay does."""

import contextlib

import torch
from torch import nn

torch.manual_seed(0)
x, target = torch.ones(4, 8, device="cuda"), torch.zeros(4, 8, device="cuda")
model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.mse_loss(model(x), target)
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
# Gradients are the graph's: each replay writes them anew.
optimizer.zero_grad(set_to_none=True)
whole = torch.cuda.CUDAGraph()
with torch.cuda.graph(whole):
    loss = nn.functional.mse_loss(model(x), target)
    loss.backward()
    optimizer.step()

# The name goes to the result, and the script refills what it was before.
static = h = torch.ones(4, device="cuda")
renamed = torch.cuda.CUDAGraph()
with torch.cuda.graph(renamed):
    h = h * 2
    h = h + 1


class Runner:
    calls = 0
    mask = None

    @contextlib.contextmanager
    def capturing(self):
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            yield self

    def __call__(self, x):
        self.calls += 1  # a statistic
        if self.mask is None:
            self.mask = torch.tril(torch.ones(4, 4, device=x.device))
        return self.mask @ x


runner = Runner()
with runner.capturing():
    masked = runner(static)
again = torch.cuda.CUDAGraph()
with torch.cuda.stream(side):
    again.capture_begin()
    noise = torch.randn_like(static)
    noisy = static + noise
    again.capture_end()
torch.cuda.synchronize()
for _ in range(3):
    x.copy_(torch.randn(4, 8, device="cuda"))
    static.copy_(torch.randn(4, device="cuda"))
    whole.replay()
    renamed.replay()
    runner.graph.replay()
    again.replay()
    print(loss.item(), h.sum().item(), masked.sum().item(), noisy.sum().item())
