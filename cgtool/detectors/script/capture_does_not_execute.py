"""Values that only a graph computes, and that are read although the graph was not replayed."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import torch

from cgtool.detectors.reporting import Detector
from cgtool.findings import code
from cgtool.model.capture import Frames
from cgtool.observe.effects import overwrites, writes_part
from cgtool.observe.frames import frames_of
from cgtool.observe.ops import OpCall
from cgtool.observe.script import events
from cgtool.observe.script.state import Buffer, Op, WatchedGraph
from cgtool.observe.tensors import key_of
from cgtool.torch_compat.storages import Layout, StorageRef, is_whole

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


class _Early(NamedTuple):
    """Eager code has read an output of a graph before its first replay."""

    graph: WatchedGraph
    read_at: Frames
    made_at: Frames


class EarlyReads(Detector):
    """Outputs of graphs that eager code reads before the first replay, if the host sees what it
    makes of them, or a replay reads that. Eager code between the captures of pieces reads them only
    to get memory for its results, and runs again at each replay."""

    phase = "replay"
    _most = _FEWEST = 64
    """With more than this in ``ObservedScript.early``, those that are freed are forgotten."""

    def on_eager_op(self, event: events.EagerOp | events.ResultUsed) -> None:
        op = event.op
        made = op.made(event.result)
        early = next(filter(None, map(self._early_of, _reads(op))), None)
        if early is None:
            for tensor in (*made, *op.written):
                self.script.early.pop(key_of(tensor) or 0, None)
        elif made or op.written:
            whole = () if writes_part(op.name) else filter(is_whole, op.written)
            for tensor in (*made, *whole):
                self._mark(tensor, early)
        else:
            self._report(early)  # the host gets the result

    on_result_used = on_eager_op

    def on_replay_begins(self, event: events.ReplayBegins) -> None:
        for key, (_, early) in list(self.script.early.items()):
            use = event.graph.external.get(key)
            if use is not None and not use.first_is_write:
                self._report(early)
            if key in event.graph.allocated or (use is not None and use.written):
                self.script.early.pop(key, None)

    def on_host_read(self, event: events.HostRead) -> None:
        self._seen(event.tensor)

    def on_host_waited(self, event: events.HostWaited) -> None:
        if event.tensor is not None:
            self._seen(event.tensor)

    def _seen(self, tensor: torch.Tensor) -> None:
        if (early := self._early_of(tensor)) is not None:
            self._report(early)

    def _mark(self, tensor: torch.Tensor, early: _Early) -> None:
        marked = self.script.early
        if key_of(tensor) is None:
            return
        if len(marked) >= self._most:
            for key, (ref, _) in list(marked.items()):
                if ref.expired():
                    marked.pop(key, None)
            self._most = max(self._FEWEST, 2 * len(marked))
        ref = StorageRef(tensor)
        marked[ref.key] = ref, early

    def _early_of(self, tensor: torch.Tensor) -> _Early | None:
        marked = self.script.early.get(key_of(tensor) or 0)
        buffer = self.script.buffers.find(tensor)
        if marked is not None or buffer is None:
            return marked and marked[1]
        for graph in self.script.replayable():
            if graph.replays == 0 and _is_result(graph, buffer):
                use = graph.external.get(buffer.key)
                made_by = buffer.allocated_by or (use and use.call)
                made_at = frames_of(made_by.chain) if made_by else ()
                return _Early(graph, self.script.place(), made_at)
        return None

    def _report(self, early: _Early) -> None:
        self.report(
            CAPTURE_DOES_NOT_EXECUTE,
            f"an output of {early.graph.name} is read before its first replay; a capture runs "
            "nothing",
            early.read_at,
            evidence=tuple(f"computed at {made.short}" for made in early.made_at[:1]),
            graphs=(early.graph,),
        )


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
