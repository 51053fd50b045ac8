"""Decoding with a static cache: the position is a tensor, and the host counts for its own loop."""

# `index_copy_` and the mask read the position on the device; `length` never reaches an op.

import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self, width, limit):
        super().__init__()
        self.project = nn.Linear(width, width)
        self.register_buffer("keys", torch.zeros(limit, width))
        self.register_buffer("position", torch.zeros(1, dtype=torch.long))
        self.register_buffer("places", torch.arange(limit))
        self.length = 0

    def forward(self, token):
        key = self.project(token)
        self.keys.index_copy_(0, self.position, key)
        scores = key @ self.keys.t()
        scores = scores.masked_fill(self.places > self.position, float("-inf"))
        self.position += 1
        return scores.softmax(-1) @ self.keys


decoder = Decoder(8, 16).cuda().eval()
token = torch.ones(1, 8, device="cuda")
with torch.no_grad():
    decoder(token)
    decoder.position.zero_()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = decoder(token)
    decoder.position.zero_()
    while decoder.length < 5:
        graph.replay()
        decoder.length += 1
        token.copy_(out)
print(decoder.length, out.sum().item())
