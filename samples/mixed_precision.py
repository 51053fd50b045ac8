"""An MLP under autocast to bfloat16, forward and backward.

    cgtool capture samples/mixed_precision.py:build

Look at: the casts that autocast inserts, each with the line that caused it. Its weight cache is
off: every use of a weight casts it again.
"""

import torch
from torch import nn


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10)
        )

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            logits = self.layers(x)
        return nn.functional.cross_entropy(logits.float(), labels)


def build(device: str):
    torch.manual_seed(0)
    model = Mixed().to(device)
    return model, (
        torch.randn(256, 128, device=device),
        torch.randint(10, (256,), device=device),
    )
