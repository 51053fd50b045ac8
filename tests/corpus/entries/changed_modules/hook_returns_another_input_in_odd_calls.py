import torch
from torch import nn


def rows(device, *shape):
    return torch.ones(*(shape or (4, 8)), device=device)


def _hooked(device, hook):
    model = nn.Sequential(nn.Linear(8, 8)).to(device)
    model[0].register_forward_pre_hook(hook)
    return model, (rows(device),)


def hook_returns_another_input_in_odd_calls(device):
    calls = {"n": 0}

    def hook(module, args):  # <- child-module-hooks-captured
        calls["n"] += 1
        if calls["n"] % 2 == 1:  # <- control-flow-frozen
            return (args[0] + 1,)
        return None

    return _hooked(device, hook)
