"""Tensors that an eager forward saves for its backward, and that a replay overwrites in between.

In eager code PyTorch compares the version of a saved tensor, and refuses the backward. A replay
changes no version.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import defaultdict
from typing import Any, NamedTuple

from cgtool.detectors.reporting import Detector
from cgtool.detectors.script.output_overwritten_by_next_replay import (
    OUTPUT_OVERWRITTEN_BY_NEXT_REPLAY,
)
from cgtool.model.capture import Frames
from cgtool.observe.frames import Chain, frames_of
from cgtool.observe.ops import is_node_of, name_of_node
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


class _Made(NamedTuple):
    """An op of a backward has run, and autograd has made nodes."""

    time: int
    op: str


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
        self._thread = self.script.home_thread
        """The thread of the first capture, or of the script."""
        self._of_others: defaultdict[int, tuple[list[int], list[_Made]]] = defaultdict(
            lambda: ([], [])
        )
        """By thread: which numbers of nodes are below that a backward has made there, for its own
        backward, and by which op. Each thread counts from 0."""

    def on_capture_began(self, event: events.CaptureBegan) -> None:
        if event.graph.number == 0:
            self._thread = threading.get_ident()

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
            self._note_made(event.op)
            self._look_at(event.op, node)
        elif threading.get_ident() == self._thread:
            read = frozenset(buffer.key for buffer in self._read(event.op))
            if read:
                self._add(_Use(self.script.clock, self.script.chain(), read))

    def on_op_captured(self, event: events.OpCaptured) -> None:
        if running_autograd_node() is not None:
            self._note_made(event.op)

    def _note_made(self, op: Op) -> None:
        """An op of a backward has run."""
        thread, following = threading.get_ident(), next_sequence_number()
        if thread != self._thread:
            numbers, made = self._of_others[thread]
            if not numbers or numbers[-1] < following:
                numbers.append(following)
                made.append(_Made(self.script.clock, op.name))
                del numbers[:-_USES], made[:-_USES]

    def _is_of_a_backward(self, node: Any, number: int, since: int) -> bool:
        """Whether a backward has made this node, and not the forward before ``since``, which may
        have given the same number to another one."""
        for numbers, made in self._of_others.values():
            index = bisect_right(numbers, number)
            if index < len(numbers) and made[index].time > since:
                is_last = numbers[index] == number + 1
                if not is_last or is_node_of(name_of_node(node), made[index].op):
                    return True
        return False

    def _add(self, use: _Use | None) -> None:
        self._numbers.append(next_sequence_number())
        self._uses.append(use)
        if len(self._uses) > 2 * _USES:
            del self._numbers[:_USES], self._uses[:_USES]

    def _look_at(self, op: Op, node: Any) -> None:
        """An op of a backward runs in this node."""
        number = sequence_number_of(node)
        index = bisect_right(self._numbers, number)
        use = self._uses[index] if index < len(self._uses) else None
        for buffer in () if use is None else self._read(op):
            write = buffer.last_write
            graph = None if write is None else write.graph
            if use is None or write is None or graph is None or buffer.key not in use.buffers:
                continue
            if write.time > use.time and not self._is_of_a_backward(node, number, use.time):
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
                    evidence=tuple(f"backward at {at.short}" for at in backward),
                    graphs=(graph,),
                )

    def _read(self, op: Op) -> list[Buffer]:
        found = (self.script.buffers.find(tensor) for tensor in op.read)
        return [buffer for buffer in found if buffer is not None]
