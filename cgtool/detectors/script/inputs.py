"""What a graph reads from outside: rebound, freed, cast before the capture, or half overwritten."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

import torch

from cgtool.detectors.reporting import Detector, at_call, on
from cgtool.findings import code
from cgtool.model.capture import Frame
from cgtool.model.finding import Finding
from cgtool.observe.script import events
from cgtool.observe.script.changes import changed_at
from cgtool.observe.script.names import Modules, Path, Stack, paths_to, stack_of
from cgtool.observe.script.script import ObservedScript
from cgtool.observe.script.state import Buffer, ExternalUse, WatchedGraph
from cgtool.observe.tensors import key_of
from cgtool.torch_compat.op_key import unobserved
from cgtool.torch_compat.private import no_torch_function

AUTOCAST_WEIGHT_CACHE = code("autocast-weight-cache")
BUCKET_PADDING_GARBAGE = code("bucket-padding-garbage")
CPU_SCALAR_TENSOR_OPERAND = code("cpu-scalar-tensor-operand")
INPUT_COPY_DOMINATES = code("input-copy-dominates")
INPUT_FREED_BEFORE_REPLAY = code("input-freed-before-replay")
PADDING_WASTE = code("padding-waste")
PINNED_SOURCE_FROZEN = code("pinned-source-frozen")
REPLAY_WITH_OTHER_SHAPE = code("replay-with-other-shape")
_REBOUND = {
    "name": code("input-rebound-not-copied"),
    "attribute": code("metadata-address-changed"),
    "item": code("metadata-address-changed"),
    "parameter": code("parameter-rebound"),
}
"""By kind of the path."""

_REPLAYS = 3
"""With a large copy, or mostly padding."""
_LARGE_COPY_BYTES = 8 << 20
_PADDING = 8
"""One real row in so many."""


class ModuleChanges:
    """The line that last changed each module, and how many graphs there were then."""

    def __init__(self) -> None:
        self._changes: weakref.WeakKeyDictionary[torch.nn.Module, tuple[int, tuple[Frame, ...]]] = (
            weakref.WeakKeyDictionary()
        )

    def note(self, changed: torch.nn.Module, script: ObservedScript) -> None:
        change = len(script.graphs), script.place()
        for module in changed.modules():
            self._changes[module] = change

    def since(self, module: torch.nn.Module, graph: WatchedGraph) -> tuple[Frame, ...]:
        """Where a module was changed since the capture of a graph; () if no line was seen."""
        graphs, frames = self._changes.get(module, (0, ()))
        return frames if graphs >= graph.number else ()


class Inputs(Detector):
    """Names that are bound to another tensor, tensors that are freed, and numbers that changed."""

    def start(self) -> None:
        self._paths: dict[ExternalUse, list[Path]] = {}
        self._resized: dict[int | None, tuple[Frame, ...]] = {}
        """By key of a storage: where a tensor of it was resized last."""
        self._modules = Modules()
        self._values: dict[ExternalUse, Any] = {}
        """Of host tensors that a kernel took as a number."""
        self._moved = ModuleChanges()
        """Modules whose tensors were exchanged."""
        self._autocasts: list[tuple[Frame, ...]] = []
        """Where each autocast region was entered, outermost first."""
        self._casts: set[ExternalUse] = set()
        """Reported as casts of a weight."""

    @on(events.ModuleChanged)
    def _module_changed(self, event: events.ModuleChanged) -> None:
        if not event.is_train:
            self._moved.note(event.module, self.script)

    @on(events.CaptureBegan)
    def _begin(self, _event: events.CaptureBegan) -> None:
        self._modules = Modules()

    @on(events.OpCaptured)
    def _note_inputs(self, event: events.OpCaptured) -> None:
        for use in event.first_uses:
            tensor = use.tensor()
            if use.buffer.place != "host":
                frame = self.script.frame()
                self._paths[use] = paths_to(use.buffer.key, frame, self._modules)
            elif tensor is not None and tensor.numel() == 1:
                self._values[use] = _value(tensor)

    @on(events.ReplayBegins)
    def _compare_with_capture(self, event: events.ReplayBegins) -> None:
        graph = event.graph
        stack = stack_of(self.script.frame())
        for key, use in graph.external.items():
            if use.buffer.place == "host":
                self._compare_value(graph, use)
                continue
            if graph.callable is not None and key in graph.callable.static_keys:
                continue
            rebound = self._is_rebound(graph, use, stack) or self._is_resized(use)
            if not rebound and self._is_freed(use):
                self._report_freed(graph, use)

    def _is_freed(self, use: ExternalUse) -> bool:
        # What another graph allocated lies in its pool, which keeps it.
        own = use.buffer.allocated_in is None and use not in self._casts
        return own and self.script.device.is_dead(use.buffer.ref)

    @on(events.EagerOp)
    def _note_resize(self, event: events.EagerOp) -> None:
        if event.op.name in ("aten::resize_", "aten::resize_as_"):
            for tensor in event.op.tensors[:1]:
                self._resized[key_of(tensor)] = self.script.place()

    def _is_resized(self, use: ExternalUse) -> bool:
        tensor = use.tensor()
        frames = self._resized.get(use.buffer.key)
        if tensor is None or frames is None:
            return False
        with no_torch_function():
            now, address = tuple(tensor.shape), tensor.data_ptr()
        if (now, address) == (use.shape, use.data_ptr):
            return False
        self.report(
            REPLAY_WITH_OTHER_SHAPE,
            f"`resize_` has changed the static input from {list(use.shape)} to {list(now)} since "
            "the capture; the replay uses the old shape and address",
            frames,
            phase="replay",
        )
        return True

    def _is_rebound(self, graph: WatchedGraph, use: ExternalUse, stack: Stack) -> bool:
        for path in self._paths.get(use, ()):
            now = path.look(stack)
            new_key = key_of(now) if isinstance(now, torch.Tensor) else None
            if new_key is None or new_key == use.buffer.key:
                continue
            if path.kind != "parameter" and not self._replaces(graph, use, now, new_key):
                continue
            self._report_rebound(graph, path, use, now, stack)
            return True
        return False

    def _replaces(self, graph: WatchedGraph, use: ExternalUse, now: torch.Tensor, key: int) -> bool:
        """A new tensor under the old name is a mistake only if the graph was meant to read it."""
        if self._is_freed(use):
            return True
        if tuple(now.shape) != use.shape or self.script.device.place(now) != use.buffer.place:
            return False
        since = graph.began if graph.last_replay is None else graph.last_replay.time
        write = use.buffer.last_write
        if write is not None and write.graph is None and write.time > since:
            return False
        # The input of the next graph, or an output, under a name that is used again.
        return self.script.buffers.by_key(key) is None

    def _report_rebound(
        self, graph: WatchedGraph, path: Path, use: ExternalUse, now: torch.Tensor, stack: Stack
    ) -> None:
        if path.module is None:
            frames = _bound_at(path, stack, graph)
        else:
            module = path.module()
            frames = self._moved.since(module, graph) if module is not None else ()
            frames = frames or _bound_at(path, stack, graph)
        with no_torch_function():
            address = now.data_ptr()
        self.report(
            _REBOUND[path.kind],
            f"`{path.text}` is another tensor than at the capture; the replay reads the old one",
            frames or None,
            evidence=(
                f"{list(use.shape)} at {use.data_ptr:#x} when captured, {list(now.shape)} at "
                f"{address:#x} now",
            ),
            phase="replay",
        )

    def _report_freed(self, graph: WatchedGraph, use: ExternalUse) -> None:
        finding = Finding(
            PINNED_SOURCE_FROZEN if use.buffer.place == "pinned" else INPUT_FREED_BEFORE_REPLAY,
            "the tensor that this line reads is freed; the replay reads whatever is at its address "
            "now",
            phase="replay",
            evidence=(f"{use.call.name}, {list(use.shape)} at {use.data_ptr:#x}",),
        )
        self.findings.add(at_call(finding, use.call, graph.record))

    def _compare_value(self, graph: WatchedGraph, use: ExternalUse) -> None:
        tensor, before = use.tensor(), self._values.get(use)
        if tensor is None or before is None:
            return
        now = _value(tensor)
        if now != before:
            finding = Finding(
                CPU_SCALAR_TENSOR_OPERAND,
                "the capture made this CPU tensor a constant of the kernel; the replay does not "
                "see its new value",
                phase="replay",
                evidence=(f"{use.call.name}: {before} when captured, {now} now",),
            )
            self.findings.add(at_call(finding, use.call, graph.record))

    # Weights that autocast cast before the capture.

    @on(events.AutocastEntered)
    def _enter_autocast(self, _event: events.AutocastEntered) -> None:
        self._autocasts.append(self.script.place())

    @on(events.AutocastLeft)
    def _leave_autocast(self, _event: events.AutocastLeft) -> None:
        if self._autocasts:
            self._autocasts.pop()

    @on(events.OpCaptured)
    def _look_for_casts(self, event: events.OpCaptured) -> None:
        if not self._autocasts or not torch.is_autocast_cache_enabled():
            return
        for use in event.first_uses:
            tensor = use.tensor()
            if tensor is None or not _is_cast(tensor):
                continue
            self._casts.add(use)
            self.report(
                AUTOCAST_WEIGHT_CACHE,
                "the graph reads a cast of a weight that autocast made before the capture; it "
                "does not follow the weight",
                self._autocasts[-1],
                phase="capture",
                evidence=(f"{event.op.name} reads {list(tensor.shape)} {tensor.dtype}",),
            )


def _bound_at(path: Path, stack: Stack, graph: WatchedGraph) -> tuple[Frame, ...]:
    """The line that bound the path to another tensor since the capture; () if it is not known."""
    target = path.steps[-1] if path.steps else ("name", path.text)
    local_to = None if path.steps else path.frame
    return changed_at(
        [target], stack.values(), graph.outer_frames, local_to=local_to, only_bound=True
    )


def _value(tensor: torch.Tensor) -> Any:
    with unobserved(), no_torch_function():
        return tensor.detach().reshape(-1).tolist()[0]


def _is_cast(tensor: torch.Tensor) -> bool:
    """A half-precision copy of a leaf: autocast keeps it, and nothing else does."""
    half = tensor.dtype in (torch.float16, torch.bfloat16)
    node = tensor.grad_fn
    if not half or not tensor.requires_grad or node is None or "ToCopy" not in node.name():
        return False
    return any(
        source is not None and "AccumulateGrad" in source.name()
        for source, _ in node.next_functions
    )


class Copies(Detector):
    """Copies into static inputs: broadcast, of a part only, mostly padding, larger than the work of
    the graph, or while a replay still reads."""

    def start(self) -> None:
        self._batches: dict[int, _Batch] = {}
        """By key of the static input."""
        self._heavy: Counter[int] = Counter()
        """By number of the graph: replays after a copy that costs more."""
        self._padded: Counter[int] = Counter()

    @on(events.EagerOp)
    def _look_at_write(self, event: events.EagerOp) -> None:
        op = event.op
        name = op.name.partition(".")[0]
        if not name.endswith("_") or not op.args or not isinstance(op.args[0], torch.Tensor):
            return
        target = op.args[0]
        buffer = self.script.buffers.find(target)
        if buffer is None:
            return
        if buffer.place == "pinned":
            self._look_at_pinned(buffer)
        elif name in ("aten::copy_", "aten::fill_"):
            uses = (graph.external.get(buffer.key) for graph in self.script.replayable())
            use = next((use for use in uses if use is not None), None)
            if use is not None:
                batch = self._batches.setdefault(buffer.key, _Batch(use))
                if name == "aten::copy_":
                    batch.bytes, batch.frames = target.nbytes, self.script.place()
                    if self._is_broadcast(op.args[1], target):
                        return
                batch.fill(target)
        elif buffer.key in self._batches:
            self._batches[buffer.key].rest_is_written = True

    def _is_broadcast(self, source: torch.Tensor, target: torch.Tensor) -> bool:
        if not source.dim() or source.dim() != target.dim() or source.shape == target.shape:
            return False
        self.report(
            REPLAY_WITH_OTHER_SHAPE,
            f"`copy_` broadcasts {list(source.shape)} to {list(target.shape)} of the static input",
        )
        return True

    def _look_at_pinned(self, buffer: Buffer) -> None:
        read = buffer.last_read
        if read is not None and not self.script.order.done(read.stream, read.tick):
            self.report(
                PINNED_SOURCE_FROZEN,
                "the host writes a pinned buffer that a replay may still be copying from",
                evidence=("nothing has waited for the last replay that reads it",),
            )

    @on(events.ReplayEnded)
    def _look_at_batches(self, event: events.ReplayEnded) -> None:
        graph = event.graph
        batches = [self._batches[key] for key in graph.external if key in self._batches]
        for batch in batches:
            is_partial = 0 < batch.rows < batch.rows_before and not batch.rest_is_written
            if is_partial and not any(other.says_how_many(batch) for other in batches):
                self.report(
                    BUCKET_PADDING_GARBAGE,
                    f"only the first {batch.rows} of {batch.rows_before} rows are overwritten; the "
                    "replay reads the others of an earlier batch",
                    batch.frames,
                )
        copied = [batch for batch in batches if batch.bytes]
        total = sum(batch.bytes for batch in copied)
        if total >= _LARGE_COPY_BYTES and graph.device_ops <= 2:
            self._heavy[graph.number] += 1
            if self._heavy[graph.number] == _REPLAYS:
                self.report(
                    INPUT_COPY_DOMINATES,
                    f"{total >> 20} MiB are copied for a graph of {graph.device_ops} ops",
                    max(copied, key=lambda batch: batch.bytes).frames,
                )
        partial = [batch for batch in copied if batch.rows]
        if partial and all(batch.rows * _PADDING <= batch.size for batch in partial):
            self._padded[graph.number] += 1
            if self._padded[graph.number] == _REPLAYS and graph.last_replay is not None:
                largest = max(partial, key=lambda batch: batch.size)
                self.report(
                    PADDING_WASTE,
                    f"{largest.rows} of {largest.size} rows are real; the graph computes all of "
                    "them",
                    graph.last_replay.frames,
                )
        for batch in batches:
            batch.next()


class _Batch:
    """How much of a static input each batch fills, from its first row on."""

    def __init__(self, use: ExternalUse) -> None:
        self.size = use.shape[0] if use.shape else 0
        """In rows."""
        self._start = use.data_ptr
        self.rows = 0
        """That the current batch fills."""
        self.rows_before = 0
        """That the batch before filled."""
        self.rest_is_written = True
        """Whatever else writes the buffer is taken to reset the other rows."""
        self.is_written = False
        """In the current batch."""
        self.bytes = 0
        """Of the last copy of the current batch."""
        self.frames: tuple[Frame, ...] = ()
        """Of that copy."""

    def says_how_many(self, batch: _Batch) -> bool:
        """It may be a mask of, or the number of, the rows that are real in another input."""
        if self is batch or not self.is_written or not self.rest_is_written:
            return False
        return self.size <= 1 or self.rows == batch.rows

    def fill(self, target: torch.Tensor) -> None:
        self.is_written = True
        if target.dim() == 0 or target.data_ptr() != self._start:
            self.rest_is_written = True
            return
        self.rows = int(target.shape[0])
        if self.rows >= self.size:
            self.rest_is_written = True

    def next(self) -> None:
        if self.rows:
            self.rows_before = (
                self.rows if self.rest_is_written else max(self.rows, self.rows_before)
            )
        self.rows, self.bytes, self.rest_is_written, self.is_written = 0, 0, False, False
