"""Scheduled sampling: the host draws whether the decoder sees the truth or its own tokens."""

import random

import torch
from torch import nn
from torch.nn import functional


class Translator(nn.Module):
    def __init__(self, vocabulary=40, width=32):
        super().__init__()
        self.source = nn.Embedding(vocabulary, width)
        self.target = nn.Embedding(vocabulary, width)
        self.cell = nn.GRUCell(width, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, source, target, forced):
        hidden = self.source(source).mean(1)
        token, logits = torch.zeros_like(target[:, 0]), []
        for i in range(target.shape[1]):
            hidden = self.cell(self.target(token), hidden)
            logits.append(self.head(hidden))
            token = target[:, i] if forced else logits[-1].argmax(-1)
        return torch.stack(logits, 1)


class Trainer:
    def __init__(self):
        self.model = Translator().cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2, capturable=True)
        self.source = torch.zeros(8, 5, dtype=torch.int64, device="cuda")
        self.target = torch.zeros(8, 5, dtype=torch.int64, device="cuda")
        self.steps = {}
        for forced in (True, False):
            self.steps[forced] = self.capture(forced)

    def step(self, forced):
        self.optimizer.zero_grad(set_to_none=True)
        logits = self.model(self.source, self.target, forced)
        loss = functional.cross_entropy(logits.flatten(0, 1), self.target.flatten())
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def capture(self, forced):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.step(forced)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = self.step(forced)
        return graph, loss

    def train(self, source, target, forced):
        self.source.copy_(source)
        self.target.copy_(target)
        graph, loss = self.steps[forced]
        graph.replay()
        return loss.item()


torch.manual_seed(0)
random.seed(0)
trainer = Trainer()
for step in range(10):
    source = torch.randint(1, 40, (8, 5))
    forced = random.random() > step / 10
    print(step, forced, trainer.train(source, source.flip(1), forced))
