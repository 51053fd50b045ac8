"""What a script calls its streams."""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType

import torch

from cgtool.observe.script.names import names_of, parts_of, stack_of
from cgtool.observe.script.script import ObservedScript
from cgtool.torch_compat.streams import handle_of


def name_of_stream(script: ObservedScript, stream: int) -> str | None:
    """How the running code can write a stream: by a name of it, or as an attribute or item of what
    has a name; None if it has none."""
    if stream == script.device.stream():
        return "torch.cuda.current_stream()"
    if stream == 0:
        return "torch.cuda.default_stream()"
    return next(_names_of_stream(script.frame(), stream), None)


def _names_of_stream(frame: FrameType | None, stream: int) -> Iterator[str]:
    """The innermost function's first; a stream's own name before a path to it."""
    for running in stack_of(frame).values():
        named = [(name, value) for name, value, _ in names_of(running)]
        yield from (name for name, value in named if _is_stream(value, stream))
        for name, value in named:
            for (kind, key), part in parts_of(value):
                if _is_stream(part, stream):
                    yield f"{name}.{key}" if kind == "attribute" else f"{name}[{key!r}]"


def _is_stream(value: object, stream: int) -> bool:
    return isinstance(value, torch.cuda.Stream | torch.Stream) and handle_of(value) == stream
