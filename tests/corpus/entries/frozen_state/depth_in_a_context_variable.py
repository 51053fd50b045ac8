import contextvars

import torch
from torch import nn

depth = contextvars.ContextVar("depth", default=0)


class Nested(nn.Module):
    def __init__(self, inner=None):
        super().__init__()
        self.linear, self.inner = nn.Linear(5, 5), inner

    def forward(self, x):
        token = depth.set(depth.get() + 1)
        try:
            y = self.linear(x) * 0.5 ** depth.get()
            return y if self.inner is None else self.inner(y)
        finally:
            depth.reset(token)


def depth_in_a_context_variable(device):
    return Nested(Nested(Nested())).to(device), (torch.randn(3, 5, device=device),)
