import contextlib
import functools
import operator
import types
import weakref

import torch
from torch import nn


class Frozen:
    def __set_name__(self, owner, name):
        self.slot = "_" + name

    def __get__(self, instance, owner=None):
        return self if instance is None else instance.__dict__[self.slot]

    def __set__(self, instance, value):
        instance.__dict__[self.slot] = value


class Lightning:
    def __init__(self):
        self.global_step, self.precision = 0, "bf16"


class Settled(nn.Module):
    """State in unusual places that nothing changes."""

    scale = Frozen()

    def __init__(self, trainer):
        super().__init__()
        self.lin = nn.Linear(8, 8)
        self.scale = 0.5
        self.config = types.SimpleNamespace(gate=types.SimpleNamespace(floor=0.1))
        self.floor_of = operator.attrgetter("gate.floor")
        self.squash = functools.partial(torch.clamp, max=6.0)
        object.__setattr__(self, "trainer", weakref.proxy(trainer))

    def forward(self, x):
        with contextlib.ExitStack() as stack:
            if self.trainer.precision == "bf16":
                stack.enter_context(torch.autocast("cuda", torch.bfloat16, cache_enabled=False))
            out = self.lin(x).float() * self.scale + self.floor_of(self.config)
        return self.squash(out)


TRAINER = Lightning()


def settled_host_state(device):
    return Settled(TRAINER).to(device), (torch.randn(4, 8, device=device),)
