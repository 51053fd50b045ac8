"""Tensors that an eager forward saves for its backward, and that a replay overwrites in between.

In eager code PyTorch compares the version of a saved tensor, and refuses the backward. A replay
changes no version.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple

from cgtool.detectors.reporting import Detector
from cgtool.detectors.script.outputs import OUTPUT_OVERWRITTEN_BY_NEXT_REPLAY
from cgtool.model.capture import Frames
from cgtool.observe.frames import Chain, frames_of
from cgtool.observe.script import events
from cgtool.observe.script.state import Buffer, GraphedCallable, Op
from cgtool.torch_compat.private import (
    next_sequence_number,
    running_autograd_node,
    sequence_number_of,
)

_USES = 4096
"""Ops of forwards that are remembered."""


class _Use(NamedTuple):
    """An eager op has read what a graph uses, too."""

    time: int
    """Value of ``ObservedScript.clock``."""
    chain: Chain
    buffers: frozenset[int]
    """By key."""


class SavedTensors(Detector):
    """Outputs that a head, a loss or another eager function reads before a replay, and its backward
    after it."""

    def start(self) -> None:
        self._numbers: list[int] = []
        self._uses: list[_Use | None] = []
        """Which numbers the autograd nodes of an op, and of ops before it, are below; None for the
        ops of a capture, whose nodes see on purpose what the last replay has written."""
        self._of_callables: list[tuple[GraphedCallable, Frames]] = []
        """Findings about the outputs of graphed callables."""
        self._thread = threading.get_ident()
        self._of_others = 0
        """Which numbers of nodes are below that another thread has made: the backward of a
        backward, on autograd's thread, which numbers its nodes by itself."""

    def on_capture_ended(self, _event: events.CaptureEnded) -> None:
        self._add(None)

    def on_graphed_backward_too_late(self, event: events.GraphedBackwardTooLate) -> None:
        # That is reported, and says what to do about all that the second call overwrites.
        for graphed, frames in self._of_callables:
            if graphed is event.callable:
                self.findings.drop(OUTPUT_OVERWRITTEN_BY_NEXT_REPLAY, frames)

    def on_eager_op(self, event: events.EagerOp) -> None:
        node = running_autograd_node()
        if node is not None:
            self._note_numbers()
            self._look_at(event.op, sequence_number_of(node))
        elif threading.get_ident() == self._thread:
            read = frozenset(buffer.key for buffer in self._read(event.op))
            if read:
                self._add(_Use(self.script.clock, self.script.chain(), read))

    def on_op_captured(self, _event: events.OpCaptured) -> None:
        if running_autograd_node() is not None:
            self._note_numbers()

    def _note_numbers(self) -> None:
        if threading.get_ident() != self._thread:
            self._of_others = max(self._of_others, next_sequence_number())

    def _add(self, use: _Use | None) -> None:
        self._numbers.append(next_sequence_number())
        self._uses.append(use)
        if len(self._uses) > 2 * _USES:
            del self._numbers[:_USES], self._uses[:_USES]

    def _look_at(self, op: Op, number: int) -> None:
        """An op of a backward runs in the node with this number."""
        if number < self._of_others:
            return  # a node of the forward, or of an earlier backward
        index = bisect_right(self._numbers, number)
        use = self._uses[index] if index < len(self._uses) else None
        for buffer in () if use is None else self._read(op):
            write = buffer.last_write
            graph = None if write is None else write.graph
            if use is None or write is None or graph is None or buffer.key not in use.buffers:
                continue
            if write.time > use.time:
                frames = frames_of(use.chain)
                if graph.callable is not None:
                    self._of_callables.append((graph.callable, frames))
                backward = self.script.place()[:1]
                self.report(
                    OUTPUT_OVERWRITTEN_BY_NEXT_REPLAY,
                    "a tensor that this line reads is saved for its backward, and a replay of "
                    f"{graph.name} overwrites it before that runs",
                    frames,
                    fix="run the backward before the next replay, or let this line read a copy, "
                    "`out.clone()`",
                    evidence=tuple(
                        f"backward at {Path(at.file).name}:{at.line}" for at in backward
                    ),
                )

    def _read(self, op: Op) -> list[Buffer]:
        found = (self.script.buffers.find(tensor) for tensor in op.read)
        return [buffer for buffer in found if buffer is not None]
