from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


# The same histogram by a sum of one-hot rows.
def segmentation_weights_from_one_hot_rows(device):
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 5, 1)).to(device)
    images = torch.randn(2, 3, 8, 8, device=device)
    labels = torch.randint(0, 5, (2, 8, 8), device=device)
    classes = torch.arange(5, device=device)

    def loss_fn(images, labels):
        counts = (labels.flatten()[:, None] == classes).sum(0)
        weight = 1.0 / (counts.float() + 1.0)
        return functional.cross_entropy(net(images), labels, weight=weight / weight.sum())

    return loss_fn, (images, labels)
