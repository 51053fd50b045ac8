"""Gradients of a window of micro-batches are averaged by a share that is a tensor."""

import itertools

import torch
from torch import nn
from torch.nn import functional


class Accumulator:
    def __init__(self, model, window=4):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.share = torch.full((), 1.0 / window, device="cuda")
        self.x = torch.zeros(8, 5, device="cuda")
        self.y = torch.zeros(8, 1, device="cuda")
        for p in model.parameters():
            p.grad = torch.zeros_like(p)

    def micro(self):
        loss = functional.mse_loss(self.model(self.x), self.y) * self.share
        loss.backward()
        return loss

    def capture(self):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.micro()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = self.micro()
        self.optimizer.zero_grad(set_to_none=False)

    def run(self, window):
        self.share.fill_(1.0 / len(window))
        total = torch.zeros((), device="cuda")
        for x, y in window:
            self.x.copy_(x)
            self.y.copy_(y)
            self.graph.replay()
            total += self.loss.detach()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        return total


torch.manual_seed(0)
trainer = Accumulator(nn.Linear(5, 1).cuda())
trainer.capture()
epoch = iter([(torch.randn(8, 5), torch.randn(8, 1)) for _ in range(10)])
while window := list(itertools.islice(epoch, 4)):
    print(len(window), trainer.run(window).item(), trainer.model.weight.norm().item())
