"""The mask of a request is optional; without one, the static mask is filled with ones."""

import torch
from torch import nn


class Pooler:
    def __init__(self, model, batch, length, width):
        self.model = model
        self.tokens = torch.zeros(batch, length, width, device="cuda")
        self.mask = torch.ones(batch, length, dtype=torch.bool, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._pool()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.pooled = self._pool()

    def _pool(self):
        hidden = self.model(self.tokens).masked_fill(~self.mask[..., None], 0)
        return hidden.sum(1) / self.mask.sum(1, keepdim=True)

    def __call__(self, tokens, mask=None):
        self.tokens.copy_(tokens)
        self.mask.fill_(True) if mask is None else self.mask.copy_(mask)
        self.graph.replay()
        return self.pooled.clone()


with torch.inference_mode():
    pooler = Pooler(nn.Identity().cuda(), 1, 4, 2)
    tokens = torch.tensor([[[1.0, 1], [2, 2], [3, 3], [6, 6]]], device="cuda")
    print(pooler(tokens)[0, 0].item())  # eager: 3.0
    short = torch.tensor([[True, True, True, False]], device="cuda")
    print(pooler(tokens, short)[0, 0].item())  # eager: 2.0
    print(pooler(tokens)[0, 0].item())  # eager: 3.0
