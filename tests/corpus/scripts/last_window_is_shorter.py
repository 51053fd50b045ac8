"""Gradients of a window of micro-batches are averaged; the last window of an epoch is shorter."""

import itertools

import torch
from torch import nn
from torch.nn import functional


class Accumulator:
    def __init__(self, model, window=4):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.share = 1.0 / window
        self.x = torch.zeros(8, 5, device="cuda")
        self.y = torch.zeros(8, 1, device="cuda")
        for p in model.parameters():
            p.grad = torch.zeros_like(p)

    def micro(self):
        loss = functional.mse_loss(self.model(self.x), self.y) * self.share  # guilty: the share
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
        self.share = 1.0 / len(window)  # guilty: the graph has the share of the capture
        for x, y in window:
            self.x.copy_(x)
            self.y.copy_(y)
            self.graph.replay()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)


torch.manual_seed(0)
trainer = Accumulator(nn.Linear(5, 1).cuda())
trainer.capture()
epoch = iter([(torch.randn(8, 5), torch.randn(8, 1)) for _ in range(10)])
while window := list(itertools.islice(epoch, 4)):
    trainer.run(window)
    print(len(window), trainer.loss.item(), trainer.model.weight.norm().item())
