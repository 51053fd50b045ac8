"""Where values of the host go in a capture: the functions that it calls, and the lines of its own
block, are observed as one iteration of an entry is (``observe.iteration``), and judged by the same
flows (``frozen_values``).

Random numbers, times, items of iterators, and numbers that each call computes from those that the
last one left, are never the same: nothing has to change before a replay.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import torch

from cgtool.detectors.frozen_values import FrozenValues
from cgtool.observe.flow_reader import read_flows
from cgtool.observe.frames import callers, locals_of
from cgtool.observe.host_reads import HostReads
from cgtool.observe.iteration import CallProfile, Iteration
from cgtool.recapture.ops import Op, inside
from cgtool.observe.script import events
from cgtool.observe.script.script import ObservedScript
from cgtool.observe.script.state import WatchedGraph
from cgtool.observe.source import block_at
from cgtool.observe.tensors import on_host
from cgtool.observe.uses import uses_of_block


class CaptureFlows:
    """Follows each capture as an iteration."""

    def __init__(self, script: ObservedScript) -> None:
        self.script = script
        self._profile: CallProfile | None = None
        """Of the capture in progress."""

    def begin(self, graph: WatchedGraph) -> None:
        recorder = self.script.device.recorder
        if recorder is None:
            return
        iteration = Iteration(record=recorder.record)
        self._profile = CallProfile(HostReads(keeps=False), iteration, recorder)
        frame = self.script.frame()
        block = None if frame is None else block_at(frame.f_code.co_filename, graph.lines)
        if frame is not None and block is not None:
            code = frame.f_code
            iteration.ran.codes[id(code)] = code
            iteration.ran.blocks[id(code)] = block
            self._profile.reads.add_block(frame, uses_of_block(code, graph.lines))
        self._profile.__enter__()

    def note(self, event: events.OpCaptured, frame: FrameType | None) -> None:
        """An op was captured; ``frame`` called it."""
        call, graph = event.op.call, event.graph
        if self._profile is None or call is None:
            return
        in_optimizer = inside(sys._getframe(1), "/torch/optim/")
        fills_host = _is_download(event.op.copied(event.result)) and event.op.non_blocking
        op = Op(call, (), (), False, False, in_optimizer=in_optimizer, fills_host=fills_host)
        self._profile.iteration.ops.append(op)
        # A profile sees one thread, and none that was running before it.
        if call.thread not in self.script.threads:
            self._profile.follow_backward()
        while call.thread != self.script.capture_thread and frame is not None:
            if id(frame) in graph.outer_frames:
                break
            self._profile.note_running(frame)
            frame = frame.f_back

    def note_draw(self, event: events.HostDraws) -> None:
        """An op has drawn random numbers on the host."""
        if self._profile is not None:
            is_seeded = self._profile.is_seeded(event.generator)
            op = Op(event.call, (), (), True, False, random=True, is_seeded=is_seeded)
            self._profile.iteration.ops.append(op)

    def end(self, graph: WatchedGraph) -> None:
        """The captured code has run."""
        if self._profile is None:
            return
        self._profile.__exit__()
        self._profile.note_servers()
        self._profile.note_made()
        ran = self._profile.ran
        graph.functions |= {(each.co_filename, each.co_qualname) for each in ran.codes.values()}
        # In CPython before 3.13 each function that was profiled keeps a dict of its locals.
        for frame in callers(sys._getframe(1)):
            values = locals_of(frame)
            if id(frame.f_code) in ran.blocks:
                ran.tensors[id(frame.f_code)] = {
                    name
                    for name, value in values.items()
                    if isinstance(value, torch.Tensor) and not on_host(value)
                }

    def judge(self) -> FrozenValues | None:
        """Where the values of the capture that has ended go."""
        profile, self._profile = self._profile, None
        if profile is None:
            return None
        profile.finish()
        reads, iteration = profile.reads, profile.iteration
        # The same in every call, for the same seed.
        drawn = iteration.ran.drawn
        seeded = {each: drawn.pop(each) for each in iteration.seeded if each in drawn}
        values = _judged(reads, iteration)
        if seeded and values.changes_seeds():
            drawn |= seeded
            values = _judged(reads, iteration)
        return values

    def stop(self) -> None:
        """There is no capture anymore."""
        if self._profile is not None:
            self._profile.__exit__()
            self._profile = None


def called_again(flows: FrozenValues) -> Callable[[], FrozenValues]:
    """In a process that calls the code of a capture again: where those values go that this second
    call changes, of what the capture has written. The function that is returned is to be called
    after it. ``flows``: those of the capture."""
    reads = flows.reads
    left = reads.snapshot()
    written = {each.key for each in reads.watched if each.use.written}

    def after() -> FrozenValues:
        again = reads.changes(left, reads.snapshot())
        changes = [change for change in again if change.watched.key in written]
        return FrozenValues(Iteration(), flows.second, reads, changes, flows.flows)

    return after


def _judged(reads: HostReads, iteration: Iteration) -> FrozenValues:
    flows = read_flows(iteration.ran, reads)
    changes = [*reads.changing(), *filter(flows.carries, reads.moved())]
    return FrozenValues(Iteration(), iteration, reads, changes, flows)


def _is_download(copied: tuple[torch.Tensor, torch.Tensor] | None) -> bool:
    """Whether source and target of a copy are on the device and on the host."""
    return copied is not None and not on_host(copied[0]) and on_host(copied[1])
