import torch
from torch import nn


def rows(device, *shape):
    return torch.ones(*(shape or (4, 8)), device=device)


def _hooked(device, hook):
    model = nn.Sequential(nn.Linear(8, 8)).to(device)
    model[0].register_forward_pre_hook(hook)
    return model, (rows(device),)


def hook_begins_after_many_calls(device):
    calls = {"n": 0}

    def hook(module, args):  # <- child-module-hooks-captured
        calls["n"] += 1
        x = args[0]
        if calls["n"] > 40:  # <- control-flow-frozen
            return (x * 2,)
        return None

    return _hooked(device, hook)
