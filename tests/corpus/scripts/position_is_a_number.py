"""Decoding with a static cache, whose position is a number of Python."""

import torch


class Decoder:
    def __init__(self):
        self.cache = torch.zeros(4, device="cuda")
        self.position = 0
        self.token = torch.ones((), device="cuda")

    def step(self):
        self.cache[self.position] = self.token * 2  # guilty: always writes the place of the capture
        self.position += 1  # guilty: a replay does not count


decoder = Decoder()
decoder.step()
decoder.position = 0
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    decoder.step()
for _ in range(3):
    graph.replay()
print(decoder.cache.tolist())  # eager: [2.0, 2.0, 2.0, 0.0]
