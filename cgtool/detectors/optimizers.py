"""Optimizer steps that a graph freezes or refuses, at the line that constructs the optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from cgtool.findings.registry import code
from cgtool.model.capture import Frame
from cgtool.model.finding import Code, Finding
from cgtool.observe.call_sites import constructed_at
from cgtool.observe.frames import here

LR_FROZEN_DESPITE_CAPTURABLE = code("lr-frozen-despite-capturable")
OPTIMIZER_ADAFACTOR_KEYERROR = code("optimizer-adafactor-keyerror")
OPTIMIZER_NOT_CAPTURABLE = code("optimizer-not-capturable")
OPTIMIZER_WITHOUT_CAPTURE_GUARD = code("optimizer-without-capture-guard")


def frozen_by(optimizer: torch.optim.Optimizer) -> Code:
    """The code for Python numbers of this optimizer, which a graph freezes."""
    capturable = "capturable" in optimizer.param_groups[0]
    return LR_FROZEN_DESPITE_CAPTURABLE if capturable else OPTIMIZER_WITHOUT_CAPTURE_GUARD


class SteppingOptimizers:
    """Records the optimizers that step while entered, and where they step."""

    def __init__(self) -> None:
        self.steps: dict[int, tuple[torch.optim.Optimizer, tuple[Frame, ...]]] = {}

    def __enter__(self) -> SteppingOptimizers:
        self._handle = register_optimizer_step_pre_hook(self._step)
        return self

    def __exit__(self, *_exc: Any) -> None:
        self._handle.remove()

    def _step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.steps.setdefault(id(optimizer), (optimizer, here(2)))

    def findings(self) -> Iterator[Finding]:
        """What goes wrong when a graph contains these steps."""
        for optimizer, stepped_at in self.steps.values():
            yield from findings_of(optimizer, stepped_at)


def findings_of(
    optimizer: torch.optim.Optimizer, stepped_at: tuple[Frame, ...]
) -> Iterator[Finding]:
    """What goes wrong when a graph contains the step of this optimizer at ``stepped_at``."""
    group = optimizer.param_groups[0]
    name, frames = type(optimizer).__name__, constructed_at(optimizer) or stepped_at
    lr = group.get("lr")
    if name == "Adafactor" and type(optimizer).__module__.startswith("torch.optim"):
        # PyTorch's check reads an option that this class does not have.
        yield Finding(
            OPTIMIZER_ADAFACTOR_KEYERROR,
            f"`{name}.step` raises KeyError: 'capturable' when a stream is capturing",
            stepped_at,
        )
    elif "capturable" in group and not group["capturable"]:
        where = f" in line {frames[0].line}" if frames else ""
        yield Finding(
            OPTIMIZER_NOT_CAPTURABLE,
            f"`{name}` keeps its step count on the host, and its `step` refuses to be captured",
            stepped_at,
            fix=f"construct it with {name}(..., capturable=True){where}",
        )
    elif "capturable" in group and not isinstance(lr, torch.Tensor):
        yield Finding(
            frozen_by(optimizer),
            f"the learning rate of `{name}` is a Python number ({lr}): a scheduler that changes it "
            "has no effect on replays",
            frames,
            fix=f"{name}(..., lr=torch.tensor({lr}, device=...)), which schedulers update in place",
        )
    elif "capturable" not in group and not isinstance(lr, torch.Tensor):
        yield Finding(
            frozen_by(optimizer),
            f"`{name}` does not support captures: its learning rate ({lr}) and its other state on "
            "the host are frozen",
            frames,
        )
