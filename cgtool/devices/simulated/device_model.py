"""The model behind the simulated device: its streams and events follow order, forks and joins."""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from cgtool.detectors.streams import CaptureInProgress, Frontier, Lane
from cgtool.devices.simulated.owners import RecordedOwners
from cgtool.findings import code
from cgtool.model import clock
from cgtool.model.capture import UNCOMPILED, Caveat
from cgtool.observe.frames import chain_of
from cgtool.torch_compat.dispatch_keys import Args
from cgtool.torch_compat.storages import StorageRef

UNCOMPILED_NOTE = Caveat(
    UNCOMPILED,
    "the simulated device compiles nothing: code under torch.compile runs eagerly, its ops unfused",
)
_FIRST_HANDLE = 1 << 32
EVENT_OR_STREAM_QUERY = code("event-or-stream-query")


class DeviceModel(CaptureInProgress):
    """The simulated GPU: its classes of streams and events, and the capture in progress."""

    def __init__(self) -> None:
        super().__init__()
        self.stream_numbers = itertools.count()
        # Subclasses per device: user code uses torch.cuda.Stream in annotations and isinstance.
        self.stream_class: type[Stream] = type("Stream", (Stream,), {"owner": self})
        self.event_class: type[Event] = type("Event", (Event,), {"device": self})
        self.by_handle: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
        self.default: Stream = self.stream_class(name="default stream")
        self.default.cuda_stream = self.default.stream_id = 0
        self.random_state: Callable[[str, torch.Tensor], None] = lambda _action, _state: None
        """Called with ``saved`` or ``restored`` and the state when captured code does either."""
        self.is_warm = False
        """The first warm-up of an entry has begun."""
        self.overrides_stale_streams = False
        """Autograd runs nodes of other streams on that of the capture."""
        self.memory: RecordedOwners = RecordedOwners()
        self.uncompiled: tuple[Caveat, ...] = ()
        """A note, if captured code calls code of ``torch.compile``."""

    def stream_of(self, handle: int, _device: Any = None) -> Stream:
        """``torch.cuda.ExternalStream``: a stream by the handle that CUDA knows it by."""
        known = self.default if handle == 0 else self.by_handle.get(handle)
        return known or self.stream_class()

    def is_dead(self, storage: StorageRef) -> bool:
        return self.memory.is_dead(storage)

    def note_library(self, name: str, args: Args) -> None:
        """An op is about to run on the device, which may call a CUDA library."""

    def note_compiled(self) -> None:
        """Code of ``torch.compile`` is called."""
        if self.capturing:
            self.uncompiled = (UNCOMPILED_NOTE,)


class _Entered(threading.local):
    """What a thread has left for a stream."""

    def __init__(self) -> None:
        self.before: list[Stream] = []


class Stream(Lane):
    """Replaces ``torch.cuda.Stream``."""

    owner: DeviceModel

    def __init__(self, device: Any = None, priority: int = 0, *, name: str = "", **_: Any) -> None:
        self.number = next(self.owner.stream_numbers)
        super().__init__(name or f"stream {self.number}", chain_of(sys._getframe(1)))
        self.priority = priority
        self.device, self.device_index = torch.device("cuda", 0), 0
        self.stream_id = self.number
        # Numbers up to two name default streams.
        self.cuda_stream = _FIRST_HANDLE + self.number
        self.owner.by_handle[self.cuda_stream] = self
        self._of_thread = _Entered()

    def wait_stream(self, stream: Stream) -> None:
        self.owner.wait(self, stream.joined, stream.frontier, stream)

    def wait_event(self, event: Event) -> None:
        # Waiting for an event that was not recorded does nothing.
        if event.recorded:
            self.owner.wait(self, event.joined, event.frontier, event.stream)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or self.owner.event_class()
        event.record(self)
        return event

    def is_capturing(self) -> bool:
        return self.owner.capturing and self.joined == self.owner.capture_id

    def synchronize(self) -> None:
        self.owner.refuse_synchronize("Stream.synchronize()")

    def query(self) -> bool:
        self.owner.refuse(EVENT_OR_STREAM_QUERY, "Stream.query()")
        return True

    def __enter__(self) -> Stream:
        # Like PyTorch's, it can be entered more than once.
        self._of_thread.before.append(self.owner.current)
        self.owner.current = self
        return self

    def __exit__(self, *_exc: Any) -> None:
        self.owner.current = self._of_thread.before.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.number == self.number

    def __hash__(self) -> int:
        return self.number


class Event:
    """Replaces ``torch.cuda.Event``."""

    device: DeviceModel
    recorded_ns = 0

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        self.recorded = False
        self.joined: int | None = None
        self.frontier: Frontier = frozenset()
        self.stream: Stream | None = None

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or self.device.current
        self.recorded, self.recorded_ns = True, clock.perf_counter_ns()
        self.joined, self.frontier, self.stream = stream.joined, stream.frontier, stream

    def wait(self, stream: Stream | None = None) -> None:
        (stream or self.device.current).wait_event(self)

    def synchronize(self) -> None:
        self.device.refuse_synchronize("Event.synchronize()")

    def query(self) -> bool:
        self.device.refuse(EVENT_OR_STREAM_QUERY, "Event.query()")
        return True

    def elapsed_time(self, end: Event) -> float:
        """In milliseconds of the host, which runs the ops."""
        self.device.refuse(EVENT_OR_STREAM_QUERY, "Event.elapsed_time()")
        if not (self.recorded and end.recorded):
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end.recorded_ns - self.recorded_ns) / 1e6
