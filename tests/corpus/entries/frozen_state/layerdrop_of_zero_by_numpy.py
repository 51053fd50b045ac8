import numpy as np
import torch
from torch import nn
from torch.nn import functional


class _NumpyEncoder(nn.Module):
    def __init__(self, layerdrop):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.layerdrop = layerdrop

    def forward(self, x):
        for layer in self.layers:
            probability = np.random.uniform(0, 1)
            if not self.training or (probability > self.layerdrop):
                x = functional.relu(layer(x))
        return x


def layerdrop_of_zero_by_numpy(device):
    return _NumpyEncoder(0).to(device).train(), (torch.randn(4, 8, device=device),)
