"""Streams and events of the simulated device: order, fork and join, and nothing else."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from cgtool.hazards.collect import here
from cgtool.hazards.region import Region
from cgtool.model.failure import user_code
from cgtool.model.finding import Finding
from cgtool.record.frames import Site, chain_of

Frontier = frozenset[int]

_ISOLATION = "CUDA answers 905, cudaErrorStreamCaptureIsolation"
_IMPLICIT = (
    "the default stream cannot take part in a capture: CUDA answers 906, "
    "cudaErrorStreamCaptureImplicit"
)


class Device(Region):
    """The state that streams share: which is current, and what is being captured."""

    def __init__(self) -> None:
        super().__init__()
        # Classes of this device's own: user code annotates and checks with torch.cuda.Stream.
        self.stream_class: type[Stream] = type("Stream", (Stream,), {"owner": self})
        self.event_class: type[Event] = type("Event", (Event,), {"device": self})
        self.default = self.stream_class(name="default stream")
        self.current = self.default
        self.capture_id: int | None = None
        """Number of the capture in progress."""
        self.captures = 0
        self.streams: list[Stream] = []
        """Streams of the capture in progress, the capturing one first."""
        self.random_state: Callable[[str, torch.Tensor], None] = lambda _what, _state: None
        """Told when ``torch.cuda.get_rng_state`` ``saved`` a state or one was ``restored``."""

    @property
    def capturing(self) -> bool:
        return self.capture_id is not None

    @property
    def current_is_capturing(self) -> bool:
        return self.capturing and self.current.joined == self.capture_id


class Stream:
    """Stands in for ``torch.cuda.Stream``."""

    _next = 0
    owner: Device

    def __init__(self, device: Any = None, priority: int = 0, *, name: str = "", **_: Any) -> None:
        Stream._next += 1
        self.number = Stream._next
        self.name = name or f"stream {self.number}"
        self.priority = priority
        self.device, self.device_index = torch.device("cuda", 0), 0
        self.cuda_stream = self.stream_id = self.number
        self.created: tuple[Site, ...] = chain_of(sys._getframe(1))
        self.joined: int | None = None
        """The capture that this stream takes part in."""
        self.frontier: Frontier = frozenset()
        self.used: tuple[Site, ...] = ()

    def wait(self, joined: int | None, frontier: Frontier) -> None:
        """Everything submitted from now on comes after ``frontier``."""
        device = self.owner
        if not device.capturing:
            return
        if joined != device.capture_id:
            if self.joined == device.capture_id:
                device.report(
                    Finding(
                        "wait-on-precapture-work",
                        "the capture was made to wait for work from outside it",
                        here(),
                        phase=device.phase,
                        fix="record the event, or submit the work, inside the capture; or "
                        "synchronise before the capture begins",
                        evidence=(_ISOLATION,),
                    ),
                    why=_ISOLATION,
                )
            return
        if self is device.default:
            device.report(
                Finding(
                    "default-stream-dependency",
                    "the default stream was made to wait for a stream that is capturing",
                    here(),
                    phase=device.phase,
                    fix="use torch.cuda.current_stream(), or a stream of your own",
                    evidence=(_IMPLICIT,),
                ),
                why=_IMPLICIT,
            )
        if self.joined != device.capture_id:
            self.joined = device.capture_id
            self.frontier = frozenset()
            device.streams.append(self)
        self.frontier |= frontier

    def wait_stream(self, other: Stream) -> None:
        self.wait(other.joined, other.frontier)

    def wait_event(self, event: Event) -> None:
        # Waiting for an event that nobody recorded is no wait.
        if event.recorded:
            self.wait(event.joined, event.frontier)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or self.owner.event_class()
        event.record(self)
        return event

    def is_capturing(self) -> bool:
        return self.owner.capturing and self.joined == self.owner.capture_id

    def synchronize(self) -> None:
        self.owner.refuse("explicit-synchronize", "Stream.synchronize()")

    def query(self) -> bool:
        self.owner.refuse("event-or-stream-query", "Stream.query()")
        return True

    def __enter__(self) -> Stream:
        self._before = self.owner.current
        self.owner.current = self
        return self

    def __exit__(self, *_exc: Any) -> None:
        self.owner.current = self._before


class Event:
    """Stands in for ``torch.cuda.Event``."""

    device: Device

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        self.recorded = False
        self.joined: int | None = None
        self.frontier: Frontier = frozenset()

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or self.device.current
        self.recorded = True
        self.joined, self.frontier = stream.joined, stream.frontier

    def wait(self, stream: Stream | None = None) -> None:
        (stream or self.device.current).wait_event(self)

    def synchronize(self) -> None:
        self.device.refuse("explicit-synchronize", "Event.synchronize()")

    def query(self) -> bool:
        self.device.refuse("event-or-stream-query", "Event.query()")
        return True

    def elapsed_time(self, _end: Event) -> float:
        raise user_code(
            "Event.elapsed_time() was asked of the simulated device, which has no clock",
            frames=here(),
            fix="time on a GPU",
        )


@contextlib.contextmanager
def capturing(device: Device, stream: Stream, phase: str) -> Iterator[None]:
    """One capture on ``stream``."""
    device.captures += 1
    device.capture_id, device.phase = device.captures, phase
    device.streams = [stream]
    stream.joined, stream.frontier = device.capture_id, frozenset()
    before, device.current = device.current, stream
    try:
        yield
    finally:
        device.current = before
        device.capture_id = None
        device.random_state = lambda _what, _state: None
