from __future__ import annotations

import contextlib

import torch
from torch import nn


def _layer_and_input(device):
    return nn.Linear(8, 8).to(device), torch.randn(4, 8, device=device)


# What is set at the beginning is set back at the end of each call.
def context_that_restores(device):
    layer, x = _layer_and_input(device)
    settings = {"scale": 1.0}

    @contextlib.contextmanager
    def scaled(value):
        before, settings["scale"] = settings["scale"], value
        try:
            yield
        finally:
            settings["scale"] = before

    def forward(x):
        with scaled(0.5):
            y = layer(x) * settings["scale"]
        return y * settings["scale"]

    return forward, (x,)
