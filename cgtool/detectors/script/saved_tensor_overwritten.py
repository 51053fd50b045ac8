"""Tensors that a captured forward saves for its backward, which is another graph, and that are
overwritten between their replays.

In eager code PyTorch compares the version of a saved tensor, and refuses the backward. Where a
replay of the forward is followed by a write of what it saved and by a replay of the backward, a
copy is kept the next time, and compared: the script may have written the old values again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cgtool.detectors.reporting import Detector
from cgtool.findings import code
from cgtool.observe.frames import Chain
from cgtool.observe.script import events
from cgtool.observe.script.state import Access, Buffer, WatchedGraph
from cgtool.observe.tensors import key_of
from cgtool.torch_compat.op_key import unobserved
from cgtool.torch_compat.private import (
    next_sequence_number,
    no_torch_function,
    running_autograd_node,
    saved_by,
    sequence_number_of,
)
from cgtool.torch_compat.storages import Layout

SAVED_TENSOR_OVERWRITTEN = code("saved-tensor-overwritten")
_COPIED_BYTES = 256 << 20
"""The largest tensor that is copied."""


@dataclass(eq=False)
class _Saved:
    """A tensor that one graph saves, and that another one reads in its backward."""

    forward: WatchedGraph
    backward: WatchedGraph
    buffer: Buffer
    layout: Layout
    chain: Chain
    """Call chain of the op of the backward."""
    is_suspect: bool = False
    """Something has written it between two replays."""
    copy: torch.Tensor | None = None
    """For a suspect: its values after the last replay of the forward."""


class SavedBetweenReplays(Detector):
    """Saved tensors that are written between the replay of a forward and that of its backward."""

    phase = "replay"

    def start(self) -> None:
        self._numbers: list[tuple[int, int, WatchedGraph]] = []
        """Which numbers the autograd nodes of a capture have: from, to below."""
        self._first = 0
        self._saved: dict[tuple[WatchedGraph, Layout, int], _Saved] = {}

    def on_capture_began(self, _event: events.CaptureBegan) -> None:
        self._first = next_sequence_number()

    def on_capture_ended(self, event: events.CaptureEnded) -> None:
        self._numbers.append((self._first, next_sequence_number(), event.graph))

    def on_op_captured(self, event: events.OpCaptured) -> None:
        node = running_autograd_node()
        forward = None if node is None else self._forward_of(sequence_number_of(node))
        if forward is None or forward is event.graph or event.op.call is None:
            return
        read = {key for tensor in event.op.read if (key := key_of(tensor)) is not None}
        for tensor in saved_by(node) if read else ():
            key = key_of(tensor)
            buffer = None if key not in read else self.script.buffers.find(tensor)
            if buffer is None or buffer.place != "device" or tensor.nbytes > _COPIED_BYTES:
                continue
            known = event.graph, Layout.of(tensor), buffer.key
            chain = event.op.call.chain
            self._saved[known] = _Saved(forward, event.graph, buffer, known[1], chain)

    def _forward_of(self, number: int) -> WatchedGraph | None:
        graphs = (graph for first, end, graph in self._numbers if first <= number < end)
        return next(graphs, None)

    def on_replay_ended(self, event: events.ReplayEnded) -> None:
        for saved in self._saved.values():
            tensor = saved.buffer.ref.tensor(saved.layout) if saved.is_suspect else None
            if tensor is not None and saved.forward is event.graph:
                with unobserved(), no_torch_function(), torch.no_grad():
                    saved.copy = tensor.detach().clone()

    def on_replay_begins(self, event: events.ReplayBegins) -> None:
        for saved in self._saved.values():
            write = self._overwritten_by(saved) if saved.backward is event.graph else None
            if write is None:
                continue
            now = saved.buffer.ref.tensor(saved.layout)
            if saved.copy is not None and now is not None:
                with unobserved(), no_torch_function(), torch.no_grad():
                    is_same = torch.equal(saved.copy, now)
                if not is_same:
                    self._report(saved, write)
            saved.is_suspect, saved.copy = True, None

    def _overwritten_by(self, saved: _Saved) -> Access | None:
        replay, write = saved.forward.last_replay, saved.buffer.last_write
        if replay is None or write is None or write.graph is saved.forward:
            return None
        return write if write.time > replay.time else None

    def _report(self, saved: _Saved, write: Access) -> None:
        by = "this line" if write.graph is None else f"a replay of {write.graph.name}"
        self.report(
            SAVED_TENSOR_OVERWRITTEN,
            f"{by} overwrites what {saved.forward.name} has saved for its backward, before "
            f"{saved.backward.name} runs that",
            write.frames,
            graphs=(saved.forward, saved.backward),
        )
