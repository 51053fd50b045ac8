"""The decay of a moving average is computed from a count of the steps on the host."""

import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.net = nn.Linear(8, 8).cuda()
        self.average = nn.Linear(8, 8).cuda().requires_grad_(False)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.steps = 0
        self.x = torch.randn(4, 8, device="cuda")

    def step(self):
        self.optimizer.zero_grad(set_to_none=False)
        loss = self.net(self.x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.steps += 1  # <- cpu-state-step-counter
        decay = min(0.999, (1 + self.steps) / (10 + self.steps))
        with torch.no_grad():
            for average, weight in zip(
                self.average.parameters(), self.net.parameters(), strict=True
            ):
                average.mul_(decay).add_(weight, alpha=1 - decay)
        return loss


trainer = Trainer()
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        trainer.step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = trainer.step()
for _ in range(20):
    trainer.x.copy_(torch.randn(4, 8))
    graph.replay()
print(loss.item())
