"""A second call of captured code against a second replay.

The first replay of a graph is the call that was captured. From the second on, a replay repeats that
call, where eager code would run again: with the moments that an optimizer made in its first step,
the caches that it filled, the numbers that it counted. So the code of a capture is run once more
after one replay, in a process that is forked for it, and what it computes is compared with a second
replay. The script and its own replays are not touched.
"""

from __future__ import annotations

import gc
from functools import partial

import msgspec
import torch

from cgtool.detectors.frozen_values import CONTROL_FLOW_FROZEN
from cgtool.devices.simulated.calls_again import (
    Answer,
    CallsAgain,
    Texts,
    add_what_is_new,
    has_gradient_of,
    is_fed,
    signature,
    steps_of,
)
from cgtool.devices.simulated.forked import ForkedProcess, can_fork
from cgtool.devices.simulated.script_device import ScriptDevice
from cgtool.model.capture import Frames
from cgtool.observe.script import events
from cgtool.observe.script.blocks import Block, block_of
from cgtool.observe.script.script import ObservedScript
from cgtool.observe.script.state import WatchedGraph

_MOST = 16
"""Graphs of a script of which this is tried."""
_MOST_OF_LINE = 3
"""Of those that one line captures."""
_SECONDS = 20.0
"""For one of them."""


_TEXTS = Texts(
    compared="a second call of the captured code gives other values than a second replay",
    again="when the code is called again",
    repeated="the first call",
    fixes={
        CONTROL_FLOW_FROZEN: "if only its first call differs, run the code once, as a warm-up, "
        "before the capture; if a value of the host decides, select on the device, or capture one "
        "graph for each branch",
    },
)


class SecondCalls:
    """Tries a second call of what a script captures.

    Some graphs of each line, and only where Python's source has the captured statements.
    """

    def __init__(self, script: ObservedScript, device: ScriptDevice) -> None:
        self._script, self._device = script, device
        self._block: Block | None = None
        """Of the capture in progress."""
        self._tried: dict[Frames, list[WatchedGraph]] = {}
        """By place of the capture."""
        self._ops: dict[WatchedGraph, bytes] = {}
        """What each graph runs (``signature``)."""
        self._running: tuple[WatchedGraph, ForkedProcess] | None = None
        """A graph, and the process that calls its code again."""
        self._answers: list[tuple[WatchedGraph, Answer]] = []
        script.subscribe(events.CaptureBegan, self._began)
        script.subscribe(events.CaptureEnded, self._ended)
        self._undone: set[WatchedGraph] = set()
        """Those whose second call begins with less than the capture has left."""
        script.subscribe(events.CaptureFailed, self._failed)
        script.subscribe(events.FillingUndone, lambda event: self._undone.add(event.graph))

    def __enter__(self) -> SecondCalls:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._wait(0.0)

    def _began(self, event: events.CaptureBegan) -> None:
        self._block, tried = None, self._tried.get(event.graph.frames, [])
        if len(tried) < _MOST_OF_LINE and sum(map(len, self._tried.values())) < _MOST:
            self._block = block_of(self._script.frame())

    def _failed(self, _event: events.CaptureFailed) -> None:
        self._block = None

    def _ended(self, event: events.CaptureEnded) -> None:
        block, self._block = self._block, None
        self._ops[event.graph] = signature(steps_of(event.graph))
        if block is None or not block.is_ready() or not can_fork():
            return
        self._wait(_SECONDS)
        self._tried.setdefault(event.graph.frames, []).append(event.graph)
        answer = partial(_answer, self._script, self._device, event.graph, block)
        self._wait(_SECONDS)
        self._running = event.graph, ForkedProcess(answer, 2 * _SECONDS)

    def _wait(self, seconds: float) -> None:
        """For the process that runs; it is ended if it takes longer."""
        if self._running is not None:
            graph, process = self._running
            self._running = None
            answer = process.answer(seconds)
            if answer:
                found = msgspec.msgpack.decode(answer, type=Answer)
                self._answers.append((graph, found))

    def report(self) -> None:
        """The script has ended. Graphs that the same line captures may be meant for different
        calls: one of them is reported if each that was tried differs, and none is the second call
        of another one."""
        self._wait(_SECONDS)
        differing = {graph for graph, _ in self._answers}
        meant = {
            graph.frames
            for graph, answer in self._answers
            if not differing.issuperset(self._tried[graph.frames])
            or answer.ops in self._others(graph)
        }
        found = {
            graph.frames: answer.finding
            for graph, answer in reversed(self._answers)
            if graph.replays > 1
            and graph not in self._undone
            and graph.frames not in meant
            and not is_fed(graph, answer.key, graph.began)
        }
        add_what_is_new(self._device.findings, reversed(found.values()))

    def _others(self, graph: WatchedGraph) -> set[bytes]:
        """What the other graphs of its line run."""
        others = self._script.graphs_by_place()[graph.frames]
        return {self._ops[other] for other in others if other is not graph and other in self._ops}


def _answer(
    script: ObservedScript, device: ScriptDevice, graph: WatchedGraph, block: Block
) -> bytes:
    """In the forked process: the finding, if there is one."""
    torch.set_num_threads(1)  # those of the script are not here
    script.closed = True
    calls = CallsAgain(script, device, graph)
    if not calls.is_small:
        return b""
    calls.replay()
    leaves = [each for each in gc.get_objects() if has_gradient_of(each, graph)]
    found = calls.compared(block, _TEXTS, leaves)
    return b"" if found is None else msgspec.msgpack.encode(found)
