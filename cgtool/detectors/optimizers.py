"""Optimizers: which steps a graph freezes or refuses, named at the line that made the optimizer."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from cgtool.findings.registry import code
from cgtool.model.capture import Frame
from cgtool.model.finding import Finding
from cgtool.observe.frames import Site, chain_of, frames_of, here

LR_FROZEN_DESPITE_CAPTURABLE = code("lr-frozen-despite-capturable")
OPTIMIZER_ADAFACTOR_KEYERROR = code("optimizer-adafactor-keyerror")
OPTIMIZER_NOT_CAPTURABLE = code("optimizer-not-capturable")
OPTIMIZER_WITHOUT_CAPTURE_GUARD = code("optimizer-without-capture-guard")

_made: weakref.WeakKeyDictionary[torch.optim.Optimizer, tuple[Site, ...]] = (
    weakref.WeakKeyDictionary()
)


@contextlib.contextmanager
def remembered() -> Iterator[None]:
    """Note the line that makes each optimizer, while the context is entered."""
    construct = torch.optim.Optimizer.__init__

    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        _made.setdefault(self, chain_of(sys._getframe(1)))
        construct(self, *args, **kwargs)

    torch.optim.Optimizer.__init__ = noted  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.optim.Optimizer.__init__ = construct  # type: ignore[method-assign]


def made_at(optimizer: torch.optim.Optimizer) -> tuple[Frame, ...]:
    """Where the optimizer was made, innermost first; () when nobody watched."""
    return frames_of(_made.get(optimizer, ()))


class Steps:
    """The optimizers that step while the context is entered."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[torch.optim.Optimizer, tuple[Frame, ...]]] = {}

    def _step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.seen.setdefault(id(optimizer), (optimizer, here(2)))

    def __enter__(self) -> Steps:
        self._handle = register_optimizer_step_pre_hook(self._step)
        return self

    def __exit__(self, *_exc: Any) -> None:
        self._handle.remove()

    def findings(self) -> Iterator[Finding]:
        """What a graph would make of each of them."""
        for optimizer, stepped in self.seen.values():
            yield from findings_of(optimizer, stepped)


def _names(optimizer: torch.optim.Optimizer) -> str:
    return type(optimizer).__name__


def _at(place: tuple[Frame, ...]) -> str:
    return f", in line {place[0].line}" if place else ""


def findings_of(optimizer: torch.optim.Optimizer, stepped: tuple[Frame, ...]) -> Iterator[Finding]:
    """``stepped`` is the line that calls ``step()``, for optimizers that nobody saw being made."""
    group = optimizer.param_groups[0]
    name, place = _names(optimizer), made_at(optimizer) or stepped
    lr = group.get("lr")
    on_device = isinstance(lr, torch.Tensor)
    if name == "Adafactor" and type(optimizer).__module__.startswith("torch.optim"):
        # PyTorch's check asks for an option that this class does not have.
        yield Finding(
            OPTIMIZER_ADAFACTOR_KEYERROR,
            f"{name}.step() ends with KeyError: 'capturable' when a stream is capturing",
            stepped,
        )
    elif "capturable" in group and not group["capturable"]:
        yield Finding(
            OPTIMIZER_NOT_CAPTURABLE,
            f"{name} keeps its step count on the host: step() refuses to be captured",
            stepped,
            fix=f"make it {name}(..., capturable=True){_at(place)}",
        )
    elif "capturable" in group and not on_device:
        yield Finding(
            LR_FROZEN_DESPITE_CAPTURABLE,
            f"the learning rate of {name} is a Python number ({lr}): a scheduler that changes it "
            "changes nothing in a replay",
            place,
            fix=f"{name}(..., lr=torch.tensor({lr}, device=...)): a scheduler fills it in place",
        )
    elif "capturable" not in group and not on_device:
        yield Finding(
            OPTIMIZER_WITHOUT_CAPTURE_GUARD,
            f"{name} does not know of captures: its learning rate ({lr}) and whatever else it "
            "keeps on the host are frozen",
            place,
        )
