"""Where activation checkpointing is asked for: its errors come up in backward, far from there."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
from torch.utils import checkpoint

from cgtool.findings.registry import code
from cgtool.model.finding import Finding
from cgtool.observe.frames import Site, chain_of, frames_of

ACTIVATION_CHECKPOINTING = code("activation-checkpointing")

_asked: list[tuple[Site, ...]] = []


@contextlib.contextmanager
def remembered() -> Iterator[None]:
    """Note the lines that checkpoint reentrantly, while the context is entered."""
    function: Any = checkpoint.CheckpointFunction
    forward = function.forward

    def noted(*args: Any, **kwargs: Any) -> Any:
        _asked[:] = [chain_of(sys._getframe(1))]
        return forward(*args, **kwargs)

    function.forward = staticmethod(noted)
    try:
        yield
    finally:
        function.forward = staticmethod(forward)
        _asked.clear()


def placed(finding: Finding) -> Finding:
    """The finding at the line that asked for it, when it is one of checkpointing."""
    if finding.code != ACTIVATION_CHECKPOINTING or not _asked:
        return finding
    return msgspec.structs.replace(finding, frames=frames_of(_asked[-1]))
