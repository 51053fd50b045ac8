"""Who asks ``torch.cuda.is_current_stream_capturing``, and what if the answer were always yes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from cgtool.model.capture import Frame
from cgtool.observe.frames import chain_of, frames_of, is_internal

_OWNERS: tuple[Any, ...] = (torch.cuda, torch.cuda.graphs)


class Asked:
    """The call chains of the code that asked, innermost first."""

    def __init__(self) -> None:
        self.chains: list[tuple[Frame, ...]] = []


@contextlib.contextmanager
def asked(answer: bool | None = None) -> Iterator[Asked]:
    """Note who asks; ``answer`` replaces what they are told."""
    heard = Asked()

    def wrap(ask: Callable[[], bool]) -> Callable[[], bool]:
        def is_current_stream_capturing() -> bool:
            caller = sys._getframe(1)
            # Optimizers of torch's own ask too, and refuse rather than branch.
            if not is_internal(caller.f_code):
                heard.chains.append(frames_of(chain_of(caller)))
                if answer is not None:
                    return answer
            return ask()

        return is_current_stream_capturing

    before = [owner.is_current_stream_capturing for owner in _OWNERS]
    for owner, ask in zip(_OWNERS, before, strict=True):
        owner.is_current_stream_capturing = wrap(ask)
    try:
        yield heard
    finally:
        for owner, ask in zip(_OWNERS, before, strict=True):
            owner.is_current_stream_capturing = ask
