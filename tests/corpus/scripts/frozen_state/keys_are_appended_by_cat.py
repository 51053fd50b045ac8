"""A decoder that appends the new keys to its cache with `cat`, captured for one token."""

# The graph concatenates the tensors whose addresses were captured: every replay appends to the
# cache that existed before the capture, so the context never grows beyond it.

import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 8)
        self.keys = None

    def prefill(self, prompt):
        self.keys = self.project(prompt)

    def forward(self, token):
        key = self.project(token)
        self.keys = torch.cat([self.keys, key], dim=0)  # <- metadata-address-changed
        weights = torch.softmax(key @ self.keys.t(), dim=-1)
        return weights @ self.keys


decoder = Decoder().cuda().eval()
token = torch.ones(1, 8, device="cuda")
with torch.no_grad():
    decoder.prefill(torch.ones(4, 8, device="cuda"))
    decoder(token)
    decoder.prefill(torch.ones(4, 8, device="cuda"))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = decoder(token)
    for step in range(3):
        token.fill_(float(step))
        graph.replay()
        print(out.sum().item(), decoder.keys.shape)
