"""The attention window is a cached property; a setter puts the cached mask into a list."""

from functools import cached_property

import torch
from torch import nn


class WindowAttention(nn.Module):
    def __init__(self, length=8, width=4, window=2):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.length = length
        self._window = window

    @property
    def window(self):
        return self._window

    @window.setter
    def window(self, value):
        self._window = value  # <- metadata-address-changed
        mask = self.__dict__.pop("mask", None)  # <- metadata-address-changed
        self.old = [*getattr(self, "old", []), mask]

    @cached_property
    def mask(self):
        place = torch.arange(self.length, device="cuda")
        return (place[:, None] - place).abs() < self._window

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q @ k.mT).masked_fill(~self.mask, float("-inf"))  # <- metadata-address-changed
        return scores.softmax(-1) @ v


torch.manual_seed(0)
layer = WindowAttention().cuda().eval()
x = torch.randn(8, 4, device="cuda")
with torch.no_grad():
    layer(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer(x)

for window in (2, 3, 5):
    layer.window = window
    graph.replay()
    print(window, out.norm().item())
