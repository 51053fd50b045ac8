"""Graphs are cached by `functools.cache` over the length; the mask also depends on a mode."""

# The graph for length 4 was captured with the causal mask and is replayed for the bidirectional
# request as well.

import functools

import torch


class Scorer:
    def __init__(self):
        self.causal = True

    def forward(self, x):
        scores = x @ x.t()
        if self.causal:  # guilty: decided while capturing; the cache does not know the mode
            scores = scores + torch.full_like(scores, float("-inf")).triu(1)
        return scores.softmax(-1) @ x

    @functools.cache  # noqa: B019
    def graph(self, length):
        x = torch.zeros(length, 8, device="cuda")
        self.forward(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = self.forward(x)
        return graph, x, y

    def __call__(self, tokens):
        graph, x, y = self.graph(len(tokens))
        x.copy_(tokens)
        graph.replay()
        return y.clone()


scorer = Scorer()
tokens = torch.randn(4, 8)
first = scorer(tokens)
scorer.causal = False  # guilty: the cached graph is the causal one
second = scorer(tokens)
print((first - second).abs().max().item() > 0)
