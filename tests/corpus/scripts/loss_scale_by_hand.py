"""A loss scale kept as a float is halved after an overflow."""

import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.model = nn.Linear(8, 1).cuda()
        self.scale = 2.0**10
        self.good_steps = 0
        self.x = torch.randn(4, 8, device="cuda")
        self.graph = None

    def forward_backward(self):
        for p in self.model.parameters():
            p.grad.zero_()
        loss = self.model(self.x).square().mean()
        (loss * self.scale).backward()  # guilty: the scale of the capture
        return loss

    def capture(self):
        for p in self.model.parameters():
            p.grad = torch.zeros_like(p)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.forward_backward()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = self.forward_backward()

    @torch.no_grad()
    def step(self, lr=0.01):
        self.graph.replay()
        grads = [p.grad for p in self.model.parameters()]
        if not all(g.isfinite().all().item() for g in grads) or self.good_steps == 2:
            self.scale /= 2  # guilty: replays do not see it
            self.good_steps = 0
            return
        self.good_steps += 1
        for p, g in zip(self.model.parameters(), grads, strict=True):
            p.sub_(g / self.scale, alpha=lr)


trainer = Trainer()
trainer.capture()
for _ in range(6):
    trainer.x.normal_()
    trainer.step()
print(trainer.loss.item(), trainer.scale)
