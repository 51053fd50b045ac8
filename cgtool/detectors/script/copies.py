"""What a script copies into static inputs: data of another shape, only a part of the rows, mostly
padding, or more than the graph computes."""

from __future__ import annotations

import itertools
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass

import torch
from torch import Generator  # the simulated device replaces the attribute

from cgtool.detectors.reporting import Detector
from cgtool.detectors.script.padded_results import PaddedResults
from cgtool.detectors.script.padding import Batch, Padding, is_equal, size_of
from cgtool.findings import code
from cgtool.model.capture import Frames
from cgtool.model.finding import NOTE, WARNING
from cgtool.observe.script import events
from cgtool.observe.script.state import Buffer, ExternalUse, WatchedGraph
from cgtool.observe.tensors import key_of, tensors_in
from cgtool.observe.waiting import works
from cgtool.program.boundary import first_line
from cgtool.torch_compat.op_key import unobserved
from cgtool.torch_compat.private import no_torch_function
from cgtool.torch_compat.storages import Layout

BUCKET_PADDING_GARBAGE = code("bucket-padding-garbage")
INPUT_COPY_DOMINATES = code("input-copy-dominates")
PADDING_WASTE = code("padding-waste")
REPLAY_WITH_OTHER_SHAPE = code("replay-with-other-shape")

_MEANT_FOR_ALL = (
    "if it is meant for all, copy `source.expand_as(input)`, which says so; otherwise write it "
    "into the head of the buffer and reset the rest"
)
_REPLAYS = 3
"""Replays with a large copy, or mostly padding, before there is a finding."""
_LARGE_COPY_BYTES = 8 << 20
_PADDING = 8
"""Mostly padding: at most one row in this many is real."""
_TRIALS = 5
"""After this many trials, the padding of an input is assumed not to reach real rows."""
_COPIED_BYTES = 1 << 30
"""The most bytes that a trial copies."""


def _rows_to(tensor: torch.Tensor, use: ExternalUse) -> int:
    """The number of rows of a static input up to the last one that a view of it contains."""
    row = next(iter(use.layout.stride), 0)
    if not row or not tensor.numel():
        return 0
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    end = tensor.data_ptr() - use.data_ptr + (last + 1) * tensor.element_size()
    return -(-end // (row * tensor.element_size()))


@dataclass(frozen=True)
class _Unread:
    """A batch with more rows than the graph reads that was replayed for it."""

    graph: int
    """Its number."""
    rows: int
    read: int
    """How many of them it reads."""
    frames: Frames
    """Where it was replayed."""


@dataclass
class _Line:
    """The copies of one line into one static input."""

    frames: Frames = ()
    """Of the first one that broadcasts."""
    shapes: tuple[list[int], list[int]] = ([], [])
    """Of its source, and of what it fills."""
    broadcasts: int = 0
    full: int = 0
    """Those of the same shape."""


class Copies(Detector):
    """The copies between one replay and the next."""

    def start(self) -> None:
        self._unread: dict[int | None, _Unread] = {}
        """By key of the static input. Another graph, or an op of the script, may still read it."""
        self._batches: dict[int, Batch] = {}
        """By key of the static input; graphs of several sizes may read the first rows of one."""
        self._heavy: Counter[int] = Counter()
        """By number of the graph: replays after a copy that costs more than the graph."""
        self._padded: Counter[int] = Counter()
        self._trials: Counter[tuple[int, int]] = Counter()
        """By graph and input: how often other padding was tried and changed no real row."""
        self._written: defaultdict[int, set[tuple[int, Layout]]] = defaultdict(set)
        """By number of the graph: key and layout of what its ops returned or wrote."""
        self._generators: defaultdict[int, set[Generator]] = defaultdict(set)
        """By number of the graph: the generators that its ops use, except the default one."""

        self._lines: defaultdict[tuple[Buffer, tuple[str, int] | None], _Line] = defaultdict(_Line)
        """By static input and line of the script."""
        self._results = PaddedResults(self.report, self.script.device.simulated)

    def on_op_captured(self, event: events.OpCaptured) -> None:
        graph = event.graph
        self._written[graph.number].update(
            (key, Layout.of(tensor))
            for tensor in (*tensors_in(event.result), *event.op.written)
            if (key := key_of(tensor)) is not None
        )
        arguments = (*event.op.args, *event.op.kwargs.values())
        self._generators[graph.number].update(
            argument for argument in arguments if isinstance(argument, Generator)
        )
        for tensor in event.op.read:
            key = key_of(tensor)
            use = None if key is None else graph.external.get(key)
            if use is not None:
                use.rows = max(use.rows, _rows_to(tensor, use))

    def on_graph_dropped(self, event: events.GraphDropped) -> None:
        self._written.pop(event.graph.number, None)
        self._generators.pop(event.graph.number, None)

    def on_replay_begins(self, event: events.ReplayBegins) -> None:
        self._results.forget([key for key, _ in self._written[event.graph.number]])

    def on_followed_op(self, event: events.FollowedOp) -> None:
        self._results.note(event.op, event.result)
        self.script.follows_all = bool(self._results)

    def on_eager_op(self, event: events.EagerOp) -> None:
        op = event.op
        name = op.name.partition(".")[0]
        for key in map(key_of, op.read) if self._unread else ():
            self._unread.pop(key, None)
        if not name.endswith("_") or not op.args or not isinstance(op.args[0], torch.Tensor):
            return
        target = op.args[0]
        buffer = self.script.buffers.find(target)
        if buffer is None or buffer.place == "pinned":
            return
        self._report_unread(buffer.key)
        if name in ("aten::copy_", "aten::fill_"):
            uses = (graph.external.get(buffer.key) for graph in self.script.replayable())
            use = next((use for use in uses if use is not None), None)
            if use is not None:
                batch = self._batches.setdefault(buffer.key, Batch(use))
                source = op.args[1] if name == "aten::copy_" else None
                if isinstance(source, torch.Tensor):
                    batch.bytes, batch.frames = target.nbytes, self.script.place()
                    if self._is_broadcast(source, target, buffer):
                        return
                # A number fills.
                is_copy = isinstance(source, torch.Tensor)
                batch.fill(target, buffer.bytes, is_copy=is_copy)
        elif buffer.key in self._batches:
            self._batches[buffer.key].write(target)

    def _is_broadcast(self, source: torch.Tensor, target: torch.Tensor, buffer: Buffer) -> bool:
        if not source.dim() or source.dim() != target.dim():
            return False
        frames = self.script.place()
        line = self._lines[buffer, (frames[0].file, frames[0].line) if frames else None]
        if source.shape == target.shape:
            line.full += 1
            return False
        if not line.broadcasts:
            line.frames, line.shapes = frames, (list(source.shape), list(target.shape))
        line.broadcasts += 1
        return True

    def _report_broadcasts(self) -> None:
        """A short batch that fills the whole input, or one row that is meant for all of them: what
        the same line has copied otherwise tells."""
        copied: Counter[tuple[str, int] | None] = Counter()
        broadcast: Counter[tuple[str, int] | None] = Counter()
        for (_, place), line in self._lines.items():
            copied[place] += line.full
            broadcast[place] += line.broadcasts
        for (_, place), line in self._lines.items():
            if not line.broadcasts:
                continue
            source, target = line.shapes
            evidence: tuple[str, ...] = ()
            severity: str | None = WARNING
            if line.full:
                severity, evidence = None, (f"this line has also copied {target}",)
            elif line.broadcasts > 1 or (broadcast[place] > 1 and not copied[place]):
                severity, evidence = NOTE, ("this line broadcasts each time",)
            self.report(
                REPLAY_WITH_OTHER_SHAPE,
                f"`copy_` broadcasts {source} to a static input of {target}",
                line.frames,
                fix=None if line.full else _MEANT_FOR_ALL,
                evidence=evidence,
                severity=severity,
            )

    def on_script_ended(self, _event: events.ScriptEnded) -> None:
        for key in list(self._unread):
            self._report_unread(key)
        self._report_broadcasts()

    def _report_unread(self, key: int | None) -> None:
        unread = self._unread.pop(key, None)
        if unread is not None:
            self.report(
                REPLAY_WITH_OTHER_SHAPE,
                f"{unread.rows} rows are copied to a static input, and this graph reads only the "
                f"first {unread.read}; nothing computes the others",
                unread.frames,
                fix="replay the smallest graph that has at least as many rows as the batch",
                phase="replay",
            )

    def _look_for_unread(self, graph: WatchedGraph, key: int, use: ExternalUse) -> None:
        batch, known = self._batches[key], self._unread.pop(key, None)
        is_part = batch.filled and 0 < batch.bytes < use.buffer.bytes
        rows = batch.filled[0] if is_part else 0
        if 0 < use.rows < rows and graph.last_replay is not None:
            unread = _Unread(graph.number, rows, use.rows, graph.last_replay.frames)
            self._unread[key] = unread
        elif known is not None and not batch.is_written and known.graph == graph.number:
            self._unread[key] = known

    def on_replay_ended(self, event: events.ReplayEnded) -> None:
        graph = event.graph
        for key in graph.external.keys() & self._batches.keys():
            self._look_for_unread(graph, key, graph.external[key])
        inputs = {
            batch: use
            for key, use in graph.external.items()
            if (batch := self._batches.get(key)) is not None
        }
        for batch, use in inputs.items():
            padding = batch.padding(use)
            if padding is None or any(
                other.says_how_many(its, padding)
                for other, its in inputs.items()
                if other is not batch
            ):
                continue
            leak = self._leak(graph, use, padding)
            if leak is not None:
                evidence, severity = leak
                self.report(
                    BUCKET_PADDING_GARBAGE,
                    f"only the first {padding.what} are overwritten; the replay reads an earlier "
                    "batch in the others",
                    batch.frames,
                    evidence=(evidence,),
                    severity=severity,
                )
        copied = {batch: use for batch, use in inputs.items() if batch.bytes}
        total = sum(batch.bytes for batch in copied)
        if total >= _LARGE_COPY_BYTES and graph.device_ops <= 2:
            self._heavy[graph.number] += 1
            if self._heavy[graph.number] == _REPLAYS:
                self.report(
                    INPUT_COPY_DOMINATES,
                    f"{total >> 20} MiB are copied for a graph of {graph.device_ops} ops",
                    max(copied, key=lambda batch: batch.bytes).frames,
                )
        partial = {batch: size_of(use, batch.axis) for batch, use in copied.items() if batch.rows}
        if partial and all(batch.rows * _PADDING <= size for batch, size in partial.items()):
            self._padded[graph.number] += 1
            if self._padded[graph.number] == _REPLAYS and graph.last_replay is not None:
                largest, size = max(partial.items(), key=lambda item: item[1])
                self.report(
                    PADDING_WASTE,
                    f"{largest.rows} of {size} rows are real; the graph computes all of them",
                    graph.last_replay.frames,
                )
        for batch in inputs:
            batch.next()

    def _leak(
        self, graph: WatchedGraph, use: ExternalUse, padding: Padding
    ) -> tuple[str, str | None] | None:
        """Evidence that the rows that the batch does not fill affect real rows of what the graph
        writes; for a note, why that was not tried; None if replays with other values in them
        showed that they do not."""
        trial = graph.number, use.buffer.key
        if self._trials[trial] >= _TRIALS:
            return None
        self._trials[trial] += 1
        try:
            with unobserved(), no_torch_function(), torch.inference_mode():
                leaks = self._try(graph, use, padding)
                self.script.follows_all = bool(self._results)
        # The ops of the script run with values that are not its own, and may raise anything.
        except Exception as error:
            return f"not confirmed by a replay with other padding: {first_line(error)}", NOTE
        return ("a replay with other padding gave other results", None) if leaks else None

    def _try(self, graph: WatchedGraph, use: ExternalUse, padding: Padding) -> bool:
        """Replay with other padding, and restore all that this changes. Raises _NotTried."""
        device = self.script.device
        written = self._written_by(graph)
        values = padding.region(_tensor(use.buffer, use.layout))
        tensors = [each for each, _ in written]
        buffers = {buffer.key: (tensor, buffer) for tensor, buffer in written}
        memory = [values, *itertools.starmap(_memory_of, buffers.values())]
        copied = sum(each.nbytes for each in memory) + 2 * sum(each.nbytes for each in tensors)
        if copied > _COPIED_BYTES:
            raise _NotTried(f"{copied >> 20} MiB would be copied")
        # Other streams may use the memory, and the graph may write to host memory.
        device.synchronize()
        before, others = [each.clone() for each in memory], padding.others(values)
        generators = list(self._generators[graph.number])
        states = [generator.get_state() for generator in generators]
        default_state = device.generator_state()

        def restore() -> None:
            for each, value in zip(memory, before, strict=True):
                each.copy_(value)
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)
            device.set_generator_state(default_state)
            device.synchronize()

        def replayed(value: torch.Tensor) -> list[torch.Tensor]:
            restore()
            padding.put(values, value)
            self.script.replay_unseen(graph)
            device.synchronize()
            return [tensor.clone() for tensor in tensors]

        try:
            own = padding.own(values)
            as_it_was, again = replayed(own), replayed(own)
            if not all(map(is_equal, as_it_was, again)):
                raise _NotTried("two replays with the same padding gave different results")
            tried = [replayed(value) for value in others]
            leaks = not all(
                padding.is_equal(one, other)
                for result in tried
                for one, other in zip(as_it_was, result, strict=True)
            )
        finally:
            restore()
        if not leaks:
            for number, (tensor, _) in enumerate(written):
                self._results.begin(
                    tensor, as_it_was[number], [each[number] for each in tried], padding.what
                )
        return leaks

    def _written_by(self, graph: WatchedGraph) -> list[tuple[torch.Tensor, Buffer]]:
        """What a graph writes and the script still holds. Raises _NotTried if a replay may change
        more than that, or wait for others."""
        dist = torch.distributed
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            raise _NotTried("other processes take part in a replay")
        if any(map(works, self.script.threads - {threading.get_ident()})):
            raise _NotTried("other threads are running")
        if not graph.only_ops:
            raise _NotTried("kernels that no op of PyTorch launched may write any memory")
        is_dead = self.script.device.is_dead
        buffers = {use.buffer.key: use.buffer for use in graph.external.values() if use.written}
        buffers |= graph.allocated
        living = {key: buffer for key, buffer in buffers.items() if not is_dead(buffer.ref)}
        return [
            (_tensor(living[key], layout), living[key])
            for key, layout in self._written[graph.number]
            if key in living
        ]


class _NotTried(Exception):
    """A trial might change what cannot be restored, or never end."""


def _tensor(buffer: Buffer, layout: Layout) -> torch.Tensor:
    """A tensor of cgtool's own on a buffer. Raises _NotTried."""
    tensor = buffer.ref.tensor(layout)
    if tensor is None:
        raise _NotTried("a tensor that the graph uses was freed")
    return tensor


def _memory_of(tensor: torch.Tensor, buffer: Buffer) -> torch.Tensor:
    """All memory of a tensor's storage, without creating a storage object, which would own it."""
    return tensor.data.as_strided((buffer.bytes // max(tensor.element_size(), 1),), (1,), 0)
