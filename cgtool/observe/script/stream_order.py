"""What comes before what on the streams of a device, by vector clocks.

Each stream counts the work that is submitted to it. An event carries the counts of its stream, a
wait takes them over, and a wait of the host takes them over for all streams. The default stream
waits for no other: PyTorch's own streams are made with cudaStreamNonBlocking.
"""

from __future__ import annotations

import weakref
from typing import Any

Clock = dict[int, int]
"""By stream: how much of its work comes before."""


def _merge(into: Clock, other: Clock) -> None:
    for stream, count in other.items():
        if count > into.get(stream, 0):
            into[stream] = count


class Order:
    """Streams are named by their handles; 0 is the default stream."""

    def __init__(self) -> None:
        self._streams: dict[int, Clock] = {}
        self._host: Clock = {}
        self._events: weakref.WeakKeyDictionary[Any, Clock] = weakref.WeakKeyDictionary()

    def _clock(self, stream: int) -> Clock:
        return self._streams.setdefault(stream, {})

    def submit(self, stream: int) -> int:
        """The number of a new piece of work on a stream."""
        clock = self._clock(stream)
        _merge(clock, self._host)
        clock[stream] = clock.get(stream, 0) + 1
        return clock[stream]

    def before(self, stream: int, tick: int, on: int) -> bool:
        """True when work ``tick`` of ``stream`` is done before anything submitted to ``on`` now."""
        if stream == on:
            return True
        return self._clock(on).get(stream, 0) >= tick or self._host.get(stream, 0) >= tick

    def done(self, stream: int, tick: int) -> bool:
        """True when the host knows that the work is done."""
        return self._host.get(stream, 0) >= tick

    def wait_stream(self, stream: int, other: int) -> None:
        _merge(self._clock(stream), self._clock(other))

    def record(self, event: Any, stream: int) -> None:
        self._events[event] = dict(self._clock(stream))

    def wait_event(self, stream: int, event: Any) -> None:
        _merge(self._clock(stream), self._events.get(event, {}))

    def host_waits_for_event(self, event: Any) -> None:
        _merge(self._host, self._events.get(event, {}))

    def host_waits(self, stream: int | None = None) -> None:
        """The host waits for a stream, or for all of them."""
        for one in [stream] if stream is not None else list(self._streams):
            _merge(self._host, self._clock(one))
