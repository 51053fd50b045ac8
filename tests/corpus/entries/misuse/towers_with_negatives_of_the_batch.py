from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


# Two towers, the others of the batch as negatives, corrected by how frequent they are.
def towers_with_negatives_of_the_batch(device):
    users, items = nn.Embedding(50, 8).to(device), nn.Embedding(40, 8).to(device)
    buckets = nn.Embedding(7, 8).to(device)
    frequency = torch.rand(40, device=device).clamp(min=1e-3)
    optimizer = torch.optim.Adagrad([*users.parameters(), *items.parameters()], lr=0.1)
    u, i = torch.randint(50, (6,), device=device), torch.randint(40, (6,), device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        left = functional.normalize(users(u) + buckets(u % 7), dim=-1)
        right = functional.normalize(
            items(i) * buckets(i.div(7, rounding_mode="floor") % 7), dim=-1
        )
        logits = left @ right.T / 0.1 - frequency[i].log()
        same = (i[:, None] == i[None]) & ~torch.eye(len(i), dtype=torch.bool, device=i.device)
        logits = logits.masked_fill(same, -1e4)
        loss = functional.cross_entropy(logits, torch.arange(len(u), device=u.device))
        loss.backward()
        for p in optimizer.param_groups[0]["params"]:
            p.data.sub_(p.grad, alpha=0.1)
        return loss

    return step
