from __future__ import annotations

import torch
from torch import nn


# Assignment on the device: each target takes its nearest, and the k best by a mask.
def matching_on_the_device(device):
    head, targets = nn.Linear(8, 4).to(device), torch.randn(3, 4, device=device)

    def loss(x):
        boxes = head(x)
        cost = torch.cdist(boxes, targets, p=1).detach()
        k = (1 / (1 + cost)).topk(3, dim=0).values.sum(0).int().clamp(min=1)
        rank = cost.argsort(0).argsort(0)
        matched = (rank < k).float()
        each = (boxes.unsqueeze(1) - targets).abs().sum(-1)
        return (each * matched).sum() / matched.sum().clamp(min=1)

    return loss, (torch.randn(5, 8, device=device),)
