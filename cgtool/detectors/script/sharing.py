"""Inputs of a graph that several threads, or tasks of asyncio, write."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from cgtool.detectors.reporting import Detector
from cgtool.findings import code
from cgtool.model.capture import Frame
from cgtool.observe.script import events

UNSYNCHRONIZED_IO = code("unsynchronized-io")

_Running = tuple[int, asyncio.Task[Any] | None]
"""A thread, and its task."""
_Part = tuple[int, tuple[int, ...]]
"""What an op writes: address and shape. Requests may each have a part of an input."""


@dataclass
class _Write:
    time: int
    is_used: bool = False
    """Who wrote it has replayed since."""


class Sharing(Detector):
    """A request whose input another request overwrites before it replays."""

    phase = "replay"

    def start(self) -> None:
        self._writers: defaultdict[int, dict[tuple[_Part, Frame], dict[_Running, _Write]]]
        self._writers = defaultdict(lambda: defaultdict(dict))
        """By key of an input, then by part and line: when who wrote it last."""
        self._writes = 0

    def on_eager_op(self, event: events.EagerOp) -> None:
        for tensor in event.op.written:
            buffer = self.script.buffers.find(tensor)
            place = self.script.place() if buffer is not None else ()
            if buffer is not None and place:
                part = tensor.data_ptr(), tuple(tensor.shape)
                self._writes += 1
                self._writers[buffer.key][part, place[0]][_running()] = _Write(self._writes)

    def on_replay_begins(self, event: events.ReplayBegins) -> None:
        now = _running()
        for key in event.graph.external.keys() & self._writers.keys():
            for writers in self._writers[key].values():
                own = writers.get(now)
                if own is None or own.is_used:
                    continue
                own.is_used = True
                if any(other.time > own.time for other in writers.values()):
                    kind = "thread" if now[1] is None else "task"
                    self.report(
                        UNSYNCHRONIZED_IO,
                        f"another {kind} has overwritten the input since this one wrote it: the "
                        "replay computes what the other one asked for",
                        fix="hold a lock from the copy into the input until the output is copied",
                    )


def _running() -> _Running:
    """The thread, and its task."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs here
        task = None
    return threading.get_ident(), task
