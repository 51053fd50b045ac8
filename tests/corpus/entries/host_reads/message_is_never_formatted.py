import logging

import torch


def message_is_never_formatted(device):
    # The level is above debug, so the arguments are not formatted.
    quiet = logging.Logger("quiet", logging.WARNING)

    def f(x):
        loss = x.square().mean()
        quiet.debug("loss %s of %s", loss, x)
        return loss

    return f, (torch.randn(8, device=device),)
