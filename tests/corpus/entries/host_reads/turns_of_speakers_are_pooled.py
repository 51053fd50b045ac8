from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def turns_of_speakers_are_pooled(device):
    """One embedding for each turn, as long as the voice of one speaker lasts."""
    encoder = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 8)).to(device)

    def embed(features, changes):
        hidden = encoder(features)
        turns = torch.tensor_split(hidden, changes.cpu())  # <- sync-d2h-copy
        return functional.normalize(torch.stack([turn.mean(0) for turn in turns]), dim=-1)

    return embed, (torch.randn(40, 20, device=device), torch.tensor([9, 21, 30], device=device))
