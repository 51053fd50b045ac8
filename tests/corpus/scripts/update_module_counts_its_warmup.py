"""A wrapper runs eagerly for two calls, captures at the third and replays from then on."""

import functools

import torch
from torch import nn


class GraphModule:
    def __init__(self, fn, warmup=2):
        functools.update_wrapper(self, fn)
        self.fn, self.warmup, self.counter, self.graph = fn, warmup, 0, None

    def __call__(self, *args):
        if self.counter < self.warmup:
            self.counter += 1
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                out = self.fn(*args)
            torch.cuda.current_stream().wait_stream(side)
            return out
        if self.graph is None:
            self.args = [a.clone() for a in args]
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.out = self.fn(*self.args)
        for own, given in zip(self.args, args, strict=True):
            own.copy_(given, non_blocking=True)
        self.counter += 1
        self.graph.replay()
        return [o.detach().clone() for o in self.out]


q = nn.Linear(6, 1).cuda()
target = nn.Linear(6, 1).cuda().requires_grad_(False)
target.load_state_dict(q.state_dict())
optimizer = torch.optim.Adam(q.parameters(), lr=1e-2, capturable=True)


def update(obs, reward):
    optimizer.zero_grad()
    value = q(obs)
    loss = (value - reward - 0.9 * target(obs)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach(), value.detach().mean()


graphed = GraphModule(update)
history = []
for step in range(8):
    history.append(graphed(torch.randn(8, 6, device="cuda"), torch.randn(8, 1, device="cuda")))
    if step % 3 == 2:
        for old, new in zip(target.parameters(), q.parameters(), strict=True):
            old.data.lerp_(new.data, 0.1)
print([round(loss.item(), 4) for loss, _ in history], graphed.counter)
