import logging

import torch
from torch import nn
from torch.nn import functional

log = logging.getLogger("corpus.idioms")
log.setLevel(logging.INFO)


def loss_logged_below_the_level(device):
    model = nn.Linear(6, 3).to(device)

    def step(x, y):
        model.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        # Never formatted: the level of the logger is INFO.
        log.debug("loss %s, logits of %r", loss, model)
        loss.backward()
        if log.isEnabledFor(logging.DEBUG):
            log.debug("gradient %f", model.weight.grad.norm().item())
        return loss

    return step, (torch.randn(8, 6, device=device), torch.randint(3, (8,), device=device))
