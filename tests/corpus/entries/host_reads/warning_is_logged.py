from __future__ import annotations

import logging

import torch
from torch import nn


def _layer_and_input(device):
    return nn.Linear(8, 8).to(device), torch.randn(4, 8, device=device)


# Without a handler, logging prints warnings to standard error, and formats the tensor for it.
def warning_is_logged(device):
    layer, x = _layer_and_input(device)
    log = logging.getLogger("training.loss")

    def forward(x):
        loss = layer(x).square().mean()
        log.warning("loss is %s", loss)  # <- sync-print-or-format
        return loss

    return forward, (x,)
