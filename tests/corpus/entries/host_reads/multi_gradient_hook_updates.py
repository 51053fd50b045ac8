from __future__ import annotations

import torch
from torch import nn


def _model_and_batch(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    return model, torch.randn(4, 8, device=device)


# The hook only adds kernels: its nodes belong to a stream that can join the capture.
def multi_gradient_hook_updates(device):
    model, x = _model_and_batch(device)
    parameters = list(model.parameters())

    def after(grads):
        with torch.no_grad():
            for p, g in zip(parameters, grads, strict=True):
                p.sub_(g, alpha=0.01)

    with torch.cuda.stream(torch.cuda.Stream()):
        torch.autograd.graph.register_multi_grad_hook(parameters, after)

    def step():
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return step
