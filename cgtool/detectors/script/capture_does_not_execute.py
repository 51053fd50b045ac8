"""Values that only a graph computes, and that are read although the graph was not replayed."""

from __future__ import annotations

from collections import defaultdict

import torch

from cgtool.detectors.reporting import Detector
from cgtool.findings import code
from cgtool.model.capture import Frames
from cgtool.observe.effects import overwrites
from cgtool.observe.frames import frames_of
from cgtool.observe.ops import OpCall
from cgtool.observe.script import events
from cgtool.observe.script.state import Buffer, Op, WatchedGraph
from cgtool.observe.tensors import key_of
from cgtool.torch_compat.storages import Layout

CAPTURE_DOES_NOT_EXECUTE = code("capture-does-not-execute")

WARM_UP = "run the code once before the first capture, as a warm-up, so that this is computed then"

_Span = tuple[int, int]
"""The first byte in a storage, and the one after the last."""


class NotRun(Detector):
    """Memory of a graph that was not replayed, which another graph reads, or eager code, if nothing
    can replay the graph."""

    phase = "replay"

    def start(self) -> None:
        self._written: defaultdict[int, list[_Span]] = defaultdict(list)
        """By key of a buffer: what the capture in progress has written."""
        self._reads: defaultdict[WatchedGraph, dict[int, tuple[Buffer, OpCall | None]]]
        self._reads = defaultdict(dict)
        """By graph, and by key of a buffer that another graph computes: the first op that reads
        it."""

    def on_capture_began(self, _event: events.CaptureBegan) -> None:
        self._written.clear()

    def on_op_captured(self, event: events.OpCaptured) -> None:
        graph, op = event.graph, event.op
        for tensor in _reads(op):
            buffer = self._computed_elsewhere(tensor, graph)
            if buffer is not None and not _covers(
                self._written[buffer.key], Layout.of(tensor).span
            ):
                self._reads[graph].setdefault(buffer.key, (buffer, op.call))
        for tensor in op.written:
            buffer = self._computed_elsewhere(tensor, graph)
            if buffer is not None:
                self._written[buffer.key].append(Layout.of(tensor).span)

    def _computed_elsewhere(self, tensor: torch.Tensor, graph: WatchedGraph) -> Buffer | None:
        buffer = self.script.buffers.find(tensor)
        return None if buffer is None or buffer.key in graph.allocated else _not_run(buffer)

    def on_replay_begins(self, event: events.ReplayBegins) -> None:
        graph = event.graph
        for buffer, call in self._reads.get(graph, {}).values():
            if _not_run(buffer) is not None:
                self._report(buffer, _place(call), graph)

    def on_eager_op(self, event: events.EagerOp) -> None:
        for tensor in _reads(event.op):
            self._look_at(tensor)

    def on_host_read(self, event: events.HostRead) -> None:
        self._look_at(event.tensor)

    def on_host_waited(self, event: events.HostWaited) -> None:
        if event.tensor is not None:
            self._look_at(event.tensor)

    def _look_at(self, tensor: torch.Tensor) -> None:
        """Eager code reads a tensor. `EarlyReads` looks at those of graphs that can be replayed."""
        buffer = self.script.buffers.find(tensor)
        if buffer is None or _not_run(buffer) is None:
            return
        maker = buffer.allocated_in
        if maker is not None and maker.state in ("failed", "dropped"):
            self._report(buffer, self.script.place())

    def _report(self, buffer: Buffer, read_at: Frames, reader: WatchedGraph | None = None) -> None:
        """``reader``: the graph that reads it, if one does."""
        maker = buffer.allocated_in
        if maker is None:
            return
        made_at = _place(buffer.allocated_by)
        # Graphs of one line do not wait for each other: the first call has made something for the
        # later ones, too. So it has if nothing can replay its graph.
        is_alternative = reader is not None and reader.is_alternative_to(maker)
        by_first_call = not maker.replayable or is_alternative
        at_maker = by_first_call and bool(made_at)
        lines = ("read", read_at), ("computed", () if at_maker else made_at)
        name = "eager code" if reader is None else reader.name
        self.report(
            CAPTURE_DOES_NOT_EXECUTE,
            f"{name} reads what {maker.name} computes, but {maker.name} was not replayed before; a "
            "capture runs nothing",
            made_at if at_maker else None,
            phase="script" if reader is None else None,
            fix=WARM_UP if by_first_call else f"replay {maker.name} before {name}",
            evidence=tuple(f"{verb} at {frames[0].short}" for verb, frames in lines if frames),
            graphs=(maker,) if reader is None else (maker, reader),
        )


class EarlyReads(Detector):
    """Outputs of graphs that eager code reads before the first replay."""

    phase = "replay"

    def start(self) -> None:
        self._early: defaultdict[tuple[int, str], set[Frames]] = defaultdict(set)
        """Where an output was read before the first replay, by its key and the name of the op."""

    def on_op_captured(self, event: events.OpCaptured) -> None:
        # A captured op did the same before, too early: that was its warm-up, which is harmless.
        for tensor in event.op.read if self._early else ():
            for frames in self._early.pop((key_of(tensor) or 0, event.op.name), ()):
                self.findings.drop(CAPTURE_DOES_NOT_EXECUTE, frames)

    def on_eager_op(self, event: events.EagerOp) -> None:
        for tensor in event.op.read:
            self._look_at(tensor, event.op.name)

    def on_host_waited(self, event: events.HostWaited) -> None:
        if event.tensor is not None:
            self._look_at(event.tensor, event.call)

    def _look_at(self, tensor: torch.Tensor, call: str) -> None:
        buffer = self.script.buffers.find(tensor)
        if buffer is None:
            return
        for graph in self.script.replayable():
            if graph.replays == 0 and _is_result(graph, buffer):
                self._early[buffer.key, call].add(self.script.place())
                use = graph.external.get(buffer.key)
                made_by = buffer.allocated_by or (use and use.call)
                made_at = frames_of(made_by.chain) if made_by else ()
                self.report(
                    CAPTURE_DOES_NOT_EXECUTE,
                    f"an output of {graph.name} is read before its first replay; a capture runs "
                    "nothing",
                    evidence=tuple(f"computed at {made.short}" for made in made_at[:1]),
                    graphs=(graph,),
                )
                return


def _is_result(graph: WatchedGraph, buffer: Buffer) -> bool:
    """A replay of the graph would compute what the buffer holds."""
    if buffer.allocated_in is graph:
        return buffer.last_write is None
    use = graph.external.get(buffer.key)
    if use is None or not use.first_is_write or buffer.allocated_in is not None:
        return False
    # State that the graph overwrites may have a value of its own before.
    written = buffer.last_write is not None and buffer.last_write.time > graph.began
    return not written and not isinstance(use.tensor(), torch.nn.Parameter)


def _reads(op: Op) -> list[torch.Tensor]:
    return [*op.read, *(() if overwrites(op.name) else op.written)]


def _not_run(buffer: Buffer) -> Buffer | None:
    """The buffer, if only a replay of a graph would compute it, and there was none."""
    graph = buffer.allocated_in
    is_computed = graph is None or graph.replays > 0 or buffer.last_write is not None
    return None if is_computed else buffer


def _place(call: OpCall | None) -> Frames:
    return () if call is None else frames_of(call.chain)


def _covers(written: list[_Span], span: _Span) -> bool:
    """Whether all of a span was written, as far as the first and the last bytes tell."""
    at, end = span
    for first, after in sorted(written):
        if first <= at < after:
            at = after
    return at >= end
