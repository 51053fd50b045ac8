"""Lines that an error or a finding comes too late to see.

An optimizer fails in ``step()``, but the line to change is where it was constructed. Reentrant
checkpointing fails in backward, far from the line that called it.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointFunction

from cgtool.model.capture import Frames
from cgtool.observe.frames import Chain, call_op, chain_of, frames_of
from cgtool.torch_compat.patches import Patches

_constructed: weakref.WeakKeyDictionary[torch.optim.Optimizer, Chain] = weakref.WeakKeyDictionary()
_checkpointed: list[Chain] = []
"""Where reentrant checkpointing was called last."""


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    """Record the lines that construct optimizers and that checkpoint, while entered."""

    def construct(original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        _constructed.setdefault(optimizer, chain_of(sys._getframe(2)))
        call_op(original, (optimizer, *args), kwargs)

    def checkpoint(original: Any, *args: Any, **kwargs: Any) -> Any:
        _checkpointed[:] = [chain_of(sys._getframe(2))]
        return call_op(original, args, kwargs)

    with Patches() as patches:
        patches.wrap(torch.optim.Optimizer, "__init__", construct)
        patches.wrap(CheckpointFunction, "forward", checkpoint)
        patches.callback(_checkpointed.clear)
        yield


def constructed_at(optimizer: torch.optim.Optimizer) -> Frames:
    """Where the optimizer was constructed, innermost first; () if that was not recorded."""
    return frames_of(_constructed.get(optimizer, ()))


def checkpointed_at() -> Frames:
    """Where reentrant checkpointing was called last, innermost first; () for nowhere."""
    return frames_of(_checkpointed[-1]) if _checkpointed else ()
