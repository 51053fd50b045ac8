"""The number of micro-batches grows during the training; each number has its own graph."""

import torch
from torch import nn


class Trainer:
    def __init__(self, model, rows=16):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.x = torch.zeros(rows, 8, device="cuda")
        self.y = torch.zeros(rows, 1, device="cuda")
        self.graphs = {}

    def micro(self, parts):
        loss = nn.functional.mse_loss(self.model(self.x), self.y) / parts
        loss.backward()
        return loss.detach()

    def capture(self, parts):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.micro(parts)
        torch.cuda.current_stream().wait_stream(side)
        self.optimizer.zero_grad(set_to_none=False)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = self.micro(parts)
        self.optimizer.zero_grad(set_to_none=False)
        return graph, loss

    def update(self, batches):
        parts = len(batches)
        if parts not in self.graphs:
            self.graphs[parts] = self.capture(parts)
        graph, loss = self.graphs[parts]
        total = 0.0
        for x, y in batches:
            self.x.copy_(x)
            self.y.copy_(y)
            graph.replay()
            total += loss.item()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        return total


torch.manual_seed(0)
trainer = Trainer(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).cuda())
for parts in (2, 2, 4, 4, 8):
    xs = [torch.randn(16, 8) for _ in range(parts)]
    print(parts, trainer.update([(x, x[:, :1]) for x in xs]))
