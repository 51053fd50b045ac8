"""Batches that are shorter than their static input: what an earlier one has left in the other rows
is computed along. A replay with other values there shows whether it changes a real row."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass

import torch
from torch import Generator  # the simulated device replaces the attribute

from cgtool.detectors.reporting import Detector
from cgtool.findings import code
from cgtool.model.capture import Frames
from cgtool.observe.raw_tensors import raw
from cgtool.observe.script import events
from cgtool.observe.script.state import Buffer, ExternalUse, WatchedGraph
from cgtool.observe.tensors import key_of, tensors_in
from cgtool.torch_compat.storages import Layout, extent

BUCKET_PADDING_GARBAGE = code("bucket-padding-garbage")
PADDING_WASTE = code("padding-waste")

_REPLAYS = 3
"""Replays with mostly padding before there is a finding."""
_PADDING = 8
"""Mostly padding: at most one row in this many is real."""
_TRIALS = 5
"""After this many trials, the padding of an input is assumed not to reach real rows."""
_COPIED_BYTES = 256 << 20
"""The most bytes that a trial copies."""


@dataclass
class _Batch:
    """How many of the first rows of a static input each batch fills."""

    start: int = 0
    """Address of the first one."""
    rows: int = 0
    """Rows of the current batch; 0 if nothing was copied to the first ones."""
    stale: int = 0
    """So many hold an earlier batch unless the current one fills them."""
    rest_is_written: bool = False
    """The other rows were reset; any other write to the input is assumed to do that."""
    frames: Frames = ()
    """Where it was copied."""

    def next(self) -> None:
        """A replay has read the batch."""
        if self.rows or self.rest_is_written:
            self.stale = max(self.rows, 0 if self.rest_is_written else self.stale)
        self.rows, self.rest_is_written = 0, False


class Padding(Detector):
    """The rows that a batch fills, and those that it does not."""

    def start(self) -> None:
        self._batches: defaultdict[int, _Batch] = defaultdict(_Batch)
        """By key of the static input."""
        self._padded: Counter[int] = Counter()
        """By number of the graph: replays with mostly padding."""
        self._trials: Counter[tuple[int, int]] = Counter()
        """By graph and input: how often other padding was tried and changed no real row."""
        self._written: defaultdict[int, set[tuple[int, Layout]]] = defaultdict(set)
        """By number of the graph: key and layout of what its ops returned or wrote."""
        self._untried: set[int] = set()
        """Numbers of the graphs that draw by generators of the script's own."""

    def on_op_captured(self, event: events.OpCaptured) -> None:
        number, op = event.graph.number, event.op
        self._written[number].update(
            (key, Layout.of(tensor))
            for tensor in (*tensors_in(event.result), *op.written)
            if (key := key_of(tensor)) is not None
        )
        if any(isinstance(each, Generator) for each in (*op.args, *op.kwargs.values())):
            self._untried.add(number)
        for tensor in op.read:
            use = event.graph.external.get(key_of(tensor) or 0)
            if use is not None:
                use.rows = max(use.rows, _rows_to(tensor, use))

    def on_graph_dropped(self, event: events.GraphDropped) -> None:
        self._written.pop(event.graph.number, None)

    def on_eager_op(self, event: events.EagerOp) -> None:
        is_copy = event.op.name == "aten::copy_" and isinstance(event.op.args[1], torch.Tensor)
        for target in event.op.written:
            buffer = self.script.buffers.find(target)
            uses = (graph.external.get(buffer.key) for graph in self.script.replayable() if buffer)
            use = next((use for use in uses if use is not None), None)
            if buffer is None or use is None or buffer.place == "pinned":
                continue
            batch, rows = self._batches[buffer.key], _rows_of(target, use) if is_copy else 0
            batch.start, batch.rows = use.data_ptr, max(batch.rows, rows)
            batch.rest_is_written |= not rows
            batch.frames = self.script.place() if rows else batch.frames

    def on_replay_ended(self, event: events.ReplayEnded) -> None:
        graph = event.graph
        inputs = {
            use: batch
            for key, use in graph.external.items()
            if (batch := self._batches.get(key)) is not None
        }
        is_reset = any(batch.rest_is_written for batch in inputs.values())
        for use, batch in inputs.items():
            trial = graph.number, use.buffer.key
            stale = min(batch.stale, use.rows) if use.data_ptr == batch.start else 0
            if (
                not 0 < batch.rows < stale
                or batch.rest_is_written
                or self._trials[trial] >= _TRIALS
            ):
                continue
            self._trials[trial] += 1
            leaks = False
            # The ops of the script run with values that are not its own, and may raise anything.
            with contextlib.suppress(Exception), raw():
                leaks = self._leaks(graph, use, batch.rows, stale, is_reset=is_reset)
            if leaks:
                self.report(
                    BUCKET_PADDING_GARBAGE,
                    f"only the first {batch.rows} of {stale} rows are overwritten; the replay "
                    "reads an earlier batch in the others",
                    batch.frames,
                    evidence=("a replay with other padding gave other results",),
                )
        self._look_at_sizes(graph, [(b.rows, use.rows) for use, b in inputs.items() if b.rows])
        for batch in inputs.values():
            batch.next()

    def _look_at_sizes(self, graph: WatchedGraph, rows: list[tuple[int, int]]) -> None:
        """``rows``: of each input how many are real, and how many there are."""
        if rows and all(real * _PADDING <= size for real, size in rows):
            self._padded[graph.number] += 1
            if self._padded[graph.number] == _REPLAYS and graph.last_replay is not None:
                real, size = max(rows, key=lambda pair: pair[1])
                self.report(
                    PADDING_WASTE,
                    f"{real} of {size} rows are real; the graph computes all of them",
                    graph.last_replay.frames,
                )

    def _leaks(
        self, graph: WatchedGraph, use: ExternalUse, count: int, stale: int, *, is_reset: bool
    ) -> bool:
        """Whether the rows from ``count`` to ``stale`` affect real rows of what the graph writes,
        as far as a replay with other values in them can be tried. ``is_reset``: the script has
        reset the rest of another input, which may say where the padding goes in a cache."""
        device, whole = self.script.device, use.buffer.ref.tensor(use.layout)
        written = self._written_by(graph)
        if whole is None or not written:
            return False
        rows = whole[:stale]
        buffers = {buffer.key: (tensor, buffer) for tensor, buffer in written}
        memory = [rows, *itertools.starmap(_memory_of, buffers.values())]
        size = sum(each.nbytes for each in memory) + 2 * sum(each.nbytes for each, _ in written)
        if size > _COPIED_BYTES:
            return False
        # Other streams may use the memory, and the graph may write to host memory.
        device.synchronize()
        before, generator = [each.clone() for each in memory], device.generator_state()

        def restore() -> None:
            for each, value in zip(memory, before, strict=True):
                each.copy_(value)
            device.set_generator_state(generator)
            device.synchronize()

        def replayed(padding: torch.Tensor) -> list[torch.Tensor]:
            restore()
            rows[count:] = padding
            self.script.replay_unseen(graph)
            device.synchronize()
            return [tensor.clone() for tensor, _ in written]

        own = before[0][count:].clone()
        try:
            first, again = replayed(own), replayed(own)
            if not all(map(_is_equal, first, again)):
                return False
            return any(
                not _has_same_rows(one, other, count, use.rows)
                for padding in _other_values(before[0], count)
                for one, other, (_, buffer) in zip(first, replayed(padding), written, strict=True)
                if buffer.key in graph.allocated or not is_reset
            )
        finally:
            restore()

    def _written_by(self, graph: WatchedGraph) -> list[tuple[torch.Tensor, Buffer]]:
        """Tensors that a graph writes and the script still holds; none if a replay may change more
        than that, or wait for others."""
        is_joint = torch.distributed.is_available() and torch.distributed.is_initialized()
        has_others = is_joint or len(self.script.threads) > 1
        if has_others or graph.number in self._untried or not graph.only_ops:
            return []
        buffers = {use.buffer.key: use.buffer for use in graph.external.values() if use.written}
        buffers |= graph.allocated
        return [
            (tensor, buffers[key])
            for key, layout in self._written[graph.number]
            if key in buffers and not self.script.device.is_dead(buffers[key].ref)
            if (tensor := buffers[key].ref.tensor(layout)) is not None
        ]


def _rows_to(tensor: torch.Tensor, use: ExternalUse) -> int:
    """The number of rows of a static input up to the last one that a view of it contains."""
    row = next(iter(use.layout.stride), 0)
    if not row or not tensor.numel():
        return 0
    size = tensor.element_size()
    end = tensor.data_ptr() - use.data_ptr + extent(tensor.shape, tensor.stride()) * size
    return -(-end // (row * size))


def _rows_of(target: torch.Tensor, use: ExternalUse) -> int:
    """How many of the first rows of a static input a view is; 0 for a view of another form."""
    is_first = target.data_ptr() == use.data_ptr and target.dim() > 0
    form = tuple(target.shape[1:]), tuple(target.stride())
    return len(target) if is_first and form == (use.shape[1:], use.layout.stride) else 0


def _memory_of(tensor: torch.Tensor, buffer: Buffer) -> torch.Tensor:
    """All memory of a tensor's storage, without creating a storage object, which would own it."""
    return tensor.data.as_strided((buffer.bytes // max(tensor.element_size(), 1),), (1,), 0)


def _other_values(rows: torch.Tensor, count: int) -> list[torch.Tensor]:
    """For the rows behind the first ones, in the range of the script's own: on a GPU, an index or a
    probability out of range would end the process."""
    rest = rows[count:]
    if rows.is_floating_point():
        return [each.expand_as(rest) for each in (rows.amax(0), rows.amin(0) / 2)]
    return [rows[torch.arange(len(rest), device=rows.device) % count].clone()]


def _has_same_rows(one: torch.Tensor, other: torch.Tensor, count: int, total: int) -> bool:
    """Whether two results are equal in what is computed of the first rows. A dimension of a result
    has one or more elements for each row."""
    if _is_equal(one, other):
        return True
    for axis, length in enumerate(one.shape):
        if length and length % total == 0:
            real = (each.narrow(axis, 0, length // total * count) for each in (one, other))
            if _is_equal(*real):
                return True
    return False


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether they are equal, except for the noise of additions in another order."""
    if not one.is_floating_point():
        return torch.equal(one, other)
    noise = 16 * torch.finfo(one.dtype).eps
    scale = float(one.abs().nan_to_num(posinf=0).max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=noise, atol=noise * scale, equal_nan=True)
