"""``torch.Stream`` and ``torch.Event`` with methods that can be observed.

Their methods are C functions of immutable types, which cannot be patched. These subclasses call
them from Python, as those of ``torch.cuda`` do.
"""

from __future__ import annotations

from typing import Any

import torch

from cgtool.torch_compat.patches import Patches


class _Generic(type):
    """``isinstance`` is that of the class of PyTorch: C functions return its objects."""

    def __instancecheck__(cls, value: Any) -> bool:
        return (
            isinstance(value, cls.__bases__[0])
            if cls in CLASSES
            else super().__instancecheck__(value)
        )

    def __subclasscheck__(cls, other: type) -> bool:
        return (
            issubclass(other, cls.__bases__[0])
            if cls in CLASSES
            else super().__subclasscheck__(other)
        )


class Event(torch._C.Event, metaclass=_Generic):
    """Takes the place of ``torch.Event``."""

    def record(self, stream: Any = None) -> None:
        super().record(stream)

    def wait(self, stream: Any = None) -> None:
        super().wait(stream)

    def query(self) -> bool:
        return super().query()

    def synchronize(self) -> None:
        super().synchronize()


class Stream(torch._C.Stream, metaclass=_Generic):
    """Takes the place of ``torch.Stream``."""

    def wait_stream(self, other: Any) -> None:
        super().wait_stream(other)

    def wait_event(self, event: Any) -> None:
        super().wait_event(event)

    def record_event(self, event: Any = None) -> Any:
        event = Event(self.device) if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        return super().query()

    def synchronize(self) -> None:
        super().synchronize()


CLASSES = (Stream, Event)


def handle_of(stream: Any) -> int:
    """CUDA's handle of a stream of ``torch.cuda`` or a generic one; 0 is the default stream."""
    handle = getattr(stream, "cuda_stream", None)
    return int(torch.cuda.Stream(**_ids(stream)).cuda_stream if handle is None else handle)


def make_streams_observable(patches: Patches) -> None:
    """Generic streams and events are made of the classes of this file; to be called before the
    code that makes them is loaded."""

    def current_stream(original: Any, *args: Any, **kwargs: Any) -> Any:
        return Stream(**_ids(original(*args, **kwargs)))

    patches.set(torch, "Stream", Stream)
    patches.set(torch, "Event", Event)
    patches.wrap(torch.accelerator, "current_stream", current_stream)


def _ids(stream: Any) -> dict[str, int]:
    return {name: getattr(stream, name) for name in ("stream_id", "device_index", "device_type")}
