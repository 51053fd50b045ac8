import array

import numpy as np
import torch
from torch import nn
from torch.nn import functional


class NumUpdates(nn.Module):
    """fairseq's quantizer noise: the count is an array."""

    def __init__(self):
        super().__init__()
        self.count = np.zeros(1, dtype=np.int64)
        self.history = array.array("d", [1.0])
        self.lin = nn.Linear(8, 8)

    def forward(self, x):
        self.count += 1  # <- cpu-state-step-counter
        tau = max(0.1, 2.0 * 0.999995 ** float(self.count[0]))  # <- cpu-state-step-counter
        return functional.gumbel_softmax(self.lin(x), tau=tau, dim=-1)  # <- cpu-state-step-counter


def gumbel_numpy_counter(device):
    return NumUpdates().to(device), (torch.randn(4, 8, device=device),)
