"""Ops of a capture, told to the watcher."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from cgtool.observe.annotations import Annotations
from cgtool.observe.ops import OpCall, OpRecorder

Told = Callable[[OpCall, Any, tuple[Any, ...], dict[str, Any], Any], None]


def caller_of_modes(caller: FrameType | None) -> FrameType | None:
    """The frame above the watcher's own mode, which hands ops on."""
    return None if caller is None else caller.f_back


class CaptureWatcher(OpRecorder):
    """On a GPU: the op runs as it is, and is told. Not entered: the watcher's mode hands on."""

    def __init__(self, annotations: Annotations, told: Told) -> None:
        super().__init__({}, annotations)
        self._told = told
        self._home = threading.get_ident()
        self.modules.__enter__()

    def stop(self) -> None:
        self.modules.__exit__(None, None, None)

    def begin(self, func: Any, caller: Any) -> OpCall:
        return super().begin(func, caller_of_modes(caller))

    def execute(
        self, call: OpCall, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        made = func(*args, **kwargs)
        self._told(call, func, args, kwargs, made)
        return made
