"""What to write when an optimizer's own code is what a capture does not permit.

Optimizers of PyTorch keep the step count on the host unless ``capturable=True`` moves it to the
device. Some refuse to be captured without it, others read a value in the middle of ``step()``:
either way the advice belongs to the line that makes the optimizer.
"""

from __future__ import annotations

import traceback
from pathlib import Path

import msgspec
import torch

from cgtool.model.failure import CgtoolError
from cgtool.observe.frames import is_internal
from cgtool.program.guarded_access import text_of

_FOLDER = str(Path(torch.optim.__file__).parent) + "/"


def _optimizer_behind(error: BaseException) -> torch.optim.Optimizer | None:
    """The optimizer in whose own code this was raised; not in a closure of the user's."""
    found = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename.startswith(_FOLDER):
            owner = frame.f_locals.get("self")
            found = owner if isinstance(owner, torch.optim.Optimizer) else found
        elif not is_internal(frame.f_code):
            found = None
    return found


def capturable_fix(error: BaseException) -> str | None:
    """What to change, when ``error`` says that ``step()`` cannot be captured as it is."""
    if "captur" not in text_of(error):
        return None
    optimizer = _optimizer_behind(error)
    if optimizer is None:
        return None
    name = type(optimizer).__name__
    groups = optimizer.param_groups
    if not any("capturable" in group for group in groups):
        return (
            f"{name} has no capturable=True: call its step() after the replay, or use an "
            "optimizer that has it (Adam, AdamW, RMSprop, NAdam, ...)"
        )
    if all(group.get("capturable") for group in groups):
        return None
    return f"make the optimizer with capturable=True: {name}(..., capturable=True)"


def of_optimizer(error: CgtoolError) -> CgtoolError | None:
    """The same failure with the advice for the optimizer that it came from, if it did."""
    fix = capturable_fix(error)
    if fix is None:
        return None
    return CgtoolError(msgspec.structs.replace(error.failure, fix=fix))
