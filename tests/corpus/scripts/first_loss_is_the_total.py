"""The sum of an evaluation begins as the loss of the graph, which is overwritten."""

import math

import torch
from torch import nn
from torch.nn import functional


class Scorer:
    def __init__(self, model, batch, length):
        self.model = model
        self.tokens = torch.zeros(batch, length, dtype=torch.int64, device="cuda")
        self._loss()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = self._loss()

    def _loss(self):
        logits = self.model(self.tokens[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), self.tokens[:, 1:].flatten())

    def score(self, tokens):
        self.tokens.copy_(tokens)
        self.graph.replay()
        return self.loss  # guilty: as below


def perplexity(scorer, batches):
    total = None
    for batch in batches:
        loss = scorer.score(batch)
        total = loss if total is None else total + loss  # guilty: the first is an alias
    return math.exp(total.item() / len(batches))


torch.manual_seed(12)
model = nn.Sequential(nn.Embedding(40, 16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 40))
scorer = Scorer(model.cuda().requires_grad_(False), 4, 12)
print(perplexity(scorer, torch.randint(0, 40, (6, 4, 12), device="cuda")))
