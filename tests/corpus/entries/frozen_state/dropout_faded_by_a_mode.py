import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class FadingDropout(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.p = 0.5

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is functional.dropout:
            self.p *= 0.8  # <- cpu-state-step-counter
            return functional.dropout(args[0], self.p, training=True)  # <- cpu-state-step-counter
        return func(*args, **(kwargs or {}))


def dropout_faded_by_a_mode(device):
    model = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.5), nn.Linear(64, 8)).to(device)
    fading = FadingDropout()

    def f(x):
        with fading:
            return model(x)

    return f, (torch.randn(8, 16, device=device),)
