"""A script that captures nothing."""

import sys

import torch

x = torch.randn(8, device="cuda")
for _ in range(3):
    x = torch.relu(x) + 1
    if x.sum().item() < 0:
        sys.exit(1)
print(x.tolist())
