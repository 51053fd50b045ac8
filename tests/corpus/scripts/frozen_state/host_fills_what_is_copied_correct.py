"""The script writes a mask into pinned memory by NumPy before each replay, which copies it."""

import numpy as np
import torch


class Grammar:
    def __init__(self, vocabulary=16):
        self.pinned = torch.zeros(vocabulary, dtype=torch.bool).pin_memory()
        self.view = self.pinned.numpy()
        self.mask = torch.zeros(vocabulary, dtype=torch.bool, device="cuda")
        self.state = 0

    def advance(self):
        self.view[:] = False
        self.view[np.arange(self.state, 16, 4)] = True
        self.state = (self.state + 1) % 4

    def allowed(self, logits):
        self.mask.copy_(self.pinned, non_blocking=True)
        return logits.masked_fill(~self.mask, -torch.inf).softmax(-1)


grammar = Grammar()
logits = torch.randn(2, 16, device="cuda")
grammar.advance()
grammar.allowed(logits)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    probabilities = grammar.allowed(logits)
for _ in range(3):
    torch.cuda.synchronize()
    grammar.advance()
    logits.normal_()
    graph.replay()
    print(probabilities.argmax(-1).tolist())
