"""Graphs are cached under everything that the forward reads on the host: length and mode."""

# A request with another mode gets another graph.

import torch


class Scorer:
    def __init__(self):
        self.causal = True
        self.graphs = {}

    def forward(self, x):
        scores = x @ x.t()
        if self.causal:
            scores = scores + torch.full_like(scores, float("-inf")).triu(1)
        return scores.softmax(-1) @ x

    def capture(self, length):
        x = torch.zeros(length, 8, device="cuda")
        self.forward(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = self.forward(x)
        return graph, x, y

    def __call__(self, tokens):
        key = len(tokens), self.causal
        if key not in self.graphs:
            self.graphs[key] = self.capture(len(tokens))
        graph, x, y = self.graphs[key]
        x.copy_(tokens)
        graph.replay()
        return y.clone()


scorer = Scorer()
tokens = torch.randn(4, 8)
for causal in (True, False, True, False):
    scorer.causal = causal
    print(scorer(tokens).sum().item())
