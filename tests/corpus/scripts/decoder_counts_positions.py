"""A decoder whose position is an attribute that the loop raises."""

import torch


class Decoder:
    def __init__(self):
        self.cache = torch.zeros(8, 2, device="cuda")
        self.position = 0

    def __call__(self, token):
        self.cache[self.position] = token  # guilty: the row of the capture
        return self.cache.sum()


decoder = Decoder()
token = torch.ones(2, device="cuda")
decoder(token)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = decoder(token)
decoder.cache.zero_()
for position in range(3):
    decoder.position = position  # guilty: a replay does not read it
    graph.replay()
print(out.item())  # eager: 6.0
