"""Pinned memory that the host writes while a replay or a copy may still read it."""

from __future__ import annotations

import ctypes
import math
from collections import defaultdict
from dataclasses import dataclass

from cgtool.detectors.reporting import Detector
from cgtool.findings import code
from cgtool.observe.script import events
from cgtool.observe.script.state import Buffer, Op
from cgtool.observe.tensors import key_of
from cgtool.torch_compat.op_key import unobserved
from cgtool.torch_compat.private import no_torch_function
from cgtool.torch_compat.storages import Layout, StorageRef

PINNED_SOURCE_FROZEN = code("pinned-source-frozen")

_LARGEST_SOURCE = 8 << 20
"""Contents of more bytes are not compared."""
_KEPT_BYTES = 64 << 20
"""Contents of so many bytes are kept at once."""

_MEMORY = "a pinned buffer that {} may still be reading"

_Part = tuple[int, Layout]
"""A part of a storage: its key, and where it is there."""


@dataclass
class _Upload:
    """Work of the device that reads pinned memory."""

    buffer: Buffer
    layout: Layout
    reader: str
    stream: int
    tick: int
    content: bytes | None = None
    """Bytes of the memory when the work was submitted; None if they are not compared."""

    @property
    def size(self) -> int:
        return math.prod(self.layout.shape) * self.layout.dtype.itemsize

    def content_now(self) -> bytes:
        """Empty if the memory was freed."""
        with unobserved(), no_torch_function():
            tensor = self.buffer.ref.tensor(self.layout)
            held = None if tensor is None else tensor.contiguous()
            return b"" if held is None else ctypes.string_at(held.data_ptr(), held.nbytes)


class PinnedSources(Detector):
    """Pinned memory that replays and copies read, and its writers."""

    def start(self) -> None:
        self._read: defaultdict[int, set[_Part]] = defaultdict(set)
        """By number of the graph: what its copies read."""
        self._uploads: dict[_Part, _Upload] = {}
        """The last one of each part, until the host knows that it is over."""
        self._waits = 0
        """Waits of the host until the contents were last compared."""

    def on_op_captured(self, event: events.OpCaptured) -> None:
        # The simulated device runs what it captures.
        self._overwritten(event.op)
        copied = event.op.copied(event.result)
        key = None if copied is None else key_of(copied[0])
        if copied and key is not None and self.script.device.place(copied[0]) == "pinned":
            self._read[event.graph.number].add((key, Layout.of(copied[0])))

    def on_graph_dropped(self, event: events.GraphDropped) -> None:
        self._read.pop(event.graph.number, None)

    def on_replay_begins(self, _event: events.ReplayBegins) -> None:
        self._look()

    def on_replay_ended(self, event: events.ReplayEnded) -> None:
        graph, replay = event.graph, event.graph.last_replay
        for part in list(self._uploads):
            # What the device writes comes after, by the order of streams.
            if part[0] in graph.external and graph.external[part[0]].written:
                self._uploads.pop(part, None)
        for key, layout in self._read.get(graph.number, ()):
            use = graph.external.get(key)
            if replay is not None and use is not None and not use.written:
                self._begin(use.buffer, layout, "a replay", replay.stream, replay.tick)

    def on_eager_op(self, event: events.EagerOp) -> None:
        op, device = event.op, self.script.device
        for upload in self._overwritten(op):
            # A copy from the device comes after, by the order of streams.
            is_on_host = all(device.place(tensor) != "device" for tensor in op.tensors)
            if is_on_host and not self._is_over(upload):
                self._report(f"the host writes {_MEMORY.format(upload.reader)}")
                break
        copied = op.copied(event.result)
        if copied is None or not op.non_blocking or device.place(copied[0]) != "pinned":
            return
        self._look()
        storage, stream = StorageRef(copied[0]), device.stream()
        buffer = self.script.buffers.add(storage, "pinned", device.address(storage))
        tick = self.script.order.submit(stream)
        self._begin(buffer, Layout.of(copied[0]), "the copy to the static input", stream, tick)

    def _begin(self, buffer: Buffer, layout: Layout, reader: str, stream: int, tick: int) -> None:
        """Work that reads pinned memory was submitted."""
        part = buffer.key, layout
        self._uploads.pop(part, None)
        kept = sum(len(each.content or b"") for each in self._uploads.values())
        upload = self._uploads[part] = _Upload(buffer, layout, reader, stream, tick)
        if upload.size > _LARGEST_SOURCE or kept + upload.size > _KEPT_BYTES:
            return
        upload.content = upload.content_now()

    def _overwritten(self, op: Op) -> list[_Upload]:
        """The uploads of what an op writes, of which no more is to be known."""
        written = [
            part
            for tensor in (op.written if self._uploads else ())
            for part in list(self._uploads)
            if part[0] == key_of(tensor) and part[1].overlaps(Layout.of(tensor))
        ]
        return [upload for part in written if (upload := self._uploads.pop(part, None))]

    def _is_over(self, upload: _Upload) -> bool:
        return self.script.order.done(upload.stream, upload.tick)

    def on_host_waited(self, _event: events.HostWaited) -> None:
        # What is over by this wait, and no earlier one, was still read when it began.
        self._look(is_waiting=self.script.order.waits == self._waits + 1)

    def _look(self, *, is_waiting: bool = False) -> None:
        """Report what the host has written by NumPy, or another way that no op shows, while work of
        the device was reading it; work that is over is forgotten. ``is_waiting``: the work that is
        over now was not, before this call."""
        self._waits = self.script.order.waits
        # A copy: other threads go on adding uploads.
        for part, upload in list(self._uploads.items()):
            is_over = self._is_over(upload)
            is_read = (is_waiting or not is_over) and not upload.buffer.ref.expired()
            is_same = (
                upload.content is None or not is_read or upload.content_now() == upload.content
            )
            if is_over or not is_read or not is_same:
                self._uploads.pop(part, None)
            if not is_same:
                memory = _MEMORY.format(upload.reader)
                self._report(f"before this line, the host has written {memory}")

    def _report(self, reason: str) -> None:
        self.report(
            PINNED_SOURCE_FROZEN,
            reason,
            evidence=("the host has not waited since its last read",),
        )
