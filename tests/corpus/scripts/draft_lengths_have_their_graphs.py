"""Speculative decoding: one graph for each number of draft tokens, chosen by what was accepted."""

# The context is masked by a device length; the draft length is part of the key.

import torch


class Verifier:
    def __init__(self, limit, width):
        self.keys = torch.randn(limit, width, device="cuda")
        self.places = torch.arange(limit, device="cuda")
        self.length = torch.full((1,), 4, device="cuda")
        self.graphs = {}

    def verify(self, draft):
        scores = (draft @ self.keys.t()).masked_fill(self.places >= self.length, float("-inf"))
        return scores.softmax(-1) @ self.keys

    def graph(self, count):
        if count not in self.graphs:
            draft = torch.zeros(count, self.keys.shape[1], device="cuda")
            self.verify(draft)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = self.verify(draft)
            self.graphs[count] = graph, draft, out
        return self.graphs[count]


verifier = Verifier(16, 8)
count, host_length = 3, 4
for accepted in (2, 0, 3, 1):
    graph, draft, out = verifier.graph(count)
    draft.copy_(torch.randn(count, 8))
    graph.replay()
    verifier.length += accepted
    host_length += accepted
    count = max(1, min(4, accepted + 1))
    print(host_length, count, out.sum().item())
