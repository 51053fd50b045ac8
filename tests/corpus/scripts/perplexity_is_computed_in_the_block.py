"""Evaluates a language model; its perplexity is a number that the captured function returns."""

import math

import torch
from torch import nn
from torch.nn import functional


class Evaluator:
    def __init__(self, model, batch, length):
        self.model = model
        self.tokens = torch.zeros(batch, length, dtype=torch.long, device="cuda")
        self.graph = None

    def measure(self):
        logits = self.model(self.tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), self.tokens[:, 1:].flatten())
        return math.exp(loss)  # guilty: a number of the host

    @torch.inference_mode()
    def capture(self):
        self.measure()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.perplexity = self.measure()

    def __call__(self, tokens):
        self.tokens.copy_(tokens)
        self.graph.replay()
        return self.perplexity


model = nn.Sequential(nn.Embedding(30, 16), nn.Linear(16, 30)).cuda()
evaluator = Evaluator(model, 2, 9)
evaluator.capture()
print([round(evaluator(torch.randint(30, (2, 9))), 2) for _ in range(3)])
