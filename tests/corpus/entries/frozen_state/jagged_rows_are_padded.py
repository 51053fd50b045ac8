from __future__ import annotations

import torch
from torch import nn


# Without the largest length, padding fills up to the number of all values, which is a size.
def jagged_rows_are_padded(device):
    layer = nn.Linear(8, 8).to(device)
    offsets = torch.tensor([0, 3, 4, 9], device=device)

    def forward(values):
        rows = torch.nested.nested_tensor_from_jagged(layer(values), offsets)
        return torch.nested.to_padded_tensor(rows, 0.0)

    return forward, (torch.randn(9, 8, device=device),)
