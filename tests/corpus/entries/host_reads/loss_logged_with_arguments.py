import logging

import torch
from torch import nn

log = logging.getLogger(__name__)


def loss_logged_with_arguments(device):
    net = nn.Linear(4, 1).to(device)

    def f(x):
        loss = net(x).square().mean()
        # Debug is off: nothing is formatted.
        log.debug("loss %s of %s", loss, x)
        return loss

    return f, (torch.randn(5, 4, device=device),)
