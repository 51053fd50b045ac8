from __future__ import annotations

import torch
from torch import nn


# The usual check of the number of placeholders compares a tensor, and `if` reads it.
def merges_image_features_with_a_check(device):
    table, tower = nn.Embedding(32, 8).to(device), nn.Linear(12, 8).to(device)
    ids = torch.tensor([[1, 31, 31, 4], [31, 3, 31, 5]], device=device)

    def forward(pixels):
        text, image = table(ids), tower(pixels)
        mask = (ids == 31).unsqueeze(-1).expand_as(text)
        if mask.sum() != image.numel():  # <- sync-truth-value
            raise ValueError("the number of image tokens differs from that of the features")
        return text.masked_scatter(mask, image)

    return forward, (torch.randn(4, 12, device=device),)
