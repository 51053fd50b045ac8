from __future__ import annotations

import torch
from torch import nn


# A fixed number of drafts; those after the first unsure one are marked by -1.
def drafting_masks_what_is_unsure(device):
    embedding = nn.Embedding(32, 16).to(device)
    cell = nn.GRUCell(16, 16).to(device)
    head = nn.Linear(16, 32).to(device)
    token = torch.randint(0, 32, (3,), device=device)
    state = torch.randn(3, 16, device=device)

    @torch.no_grad()
    def draft(token, state):
        drafts, sure = [], torch.ones_like(token, dtype=torch.bool)
        for _ in range(4):
            state = cell(embedding(token), state)
            confidence, token = head(state).softmax(-1).max(-1)
            sure = sure & (confidence > 0.04)
            drafts.append(torch.where(sure, token, torch.full_like(token, -1)))
        return torch.stack(drafts, 1)

    return draft, (token, state)
