"""What a graph reads from outside: bound anew, freed, rewritten, of another shape or value."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from cgtool.detectors.reporting import at_call
from cgtool.detectors.script.check import Check
from cgtool.findings.registry import code
from cgtool.model.capture import Frame
from cgtool.model.finding import Finding
from cgtool.observe.script.names import Modules, Path, Stack, binding_of, paths_to, stack_of
from cgtool.observe.script.state import Op, Read, WatchedGraph
from cgtool.observe.storage import storage_of
from cgtool.torch_compat.private import no_dispatch, no_torch_function, storage_key

BUCKET_PADDING_GARBAGE = code("bucket-padding-garbage")
CPU_SCALAR_TENSOR_OPERAND = code("cpu-scalar-tensor-operand")
INPUT_FREED_BEFORE_REPLAY = code("input-freed-before-replay")
PINNED_SOURCE_FROZEN = code("pinned-source-frozen")
REPLAY_WITH_OTHER_SHAPE = code("replay-with-other-shape")

_CODES = {
    "name": code("input-rebound-not-copied"),
    "attribute": code("metadata-address-changed"),
    "item": code("metadata-address-changed"),
    "parameter": code("parameter-rebound"),
}


Changes = weakref.WeakKeyDictionary[torch.nn.Module, tuple[int, tuple[Frame, ...]]]
"""Which line last changed a module, and how many graphs there were then."""


def changed_at(changes: Changes, module: torch.nn.Module, graph: WatchedGraph) -> tuple[Frame, ...]:
    """The line that changed a module since the capture of a graph; () for none that was seen."""
    graphs, frames = changes.get(module, (0, ()))
    return frames if graphs >= graph.number else ()


class Inputs(Check):
    """Names that were bound to other tensors, and tensors that are gone."""

    def __init__(self, watch: Any) -> None:
        super().__init__(watch)
        self._paths: dict[tuple[int, int], list[Path]] = {}
        self._modules = Modules()
        self._values: dict[tuple[int, int], Any] = {}
        """Of host tensors that a kernel took as a number."""
        self.moved: Changes = weakref.WeakKeyDictionary()
        """Modules whose tensors were exchanged (told by ``modules.Modes``)."""

    def begun(self, graph: WatchedGraph) -> None:
        self._modules = Modules()

    def captured(self, graph: WatchedGraph, op: Op, fresh: list[int]) -> None:
        if not fresh:
            return
        frame = self.watch.frame()
        for key in fresh:
            read = graph.reads[key]
            if read.cell.place == "host":
                tensor = read.tensor()
                if tensor is not None and tensor.numel() == 1:
                    self._values[graph.number, key] = _value(tensor)
            else:
                self._paths[graph.number, key] = paths_to(key, frame, self._modules)

    def replaying(self, graph: WatchedGraph) -> None:
        stack = stack_of(self.watch.frame())
        for key, read in graph.reads.items():
            if read.cell.place == "host":
                self._number(graph, key, read)
                continue
            if graph.part is not None and graph.part.is_static(key):
                continue
            rebound = self._rebound(graph, key, read, stack)
            # What another graph made lies in its pool, and is not given away.
            own = read.cell.made_in is None and key not in graph.explained
            if not rebound and own and self.watch.machine.dead(read.cell.ref):
                self._freed(graph, read)

    def _rebound(self, graph: WatchedGraph, key: int, read: Read, stack: Stack) -> bool:
        for path in self._paths.get((graph.number, key), ()):
            now = path.look(stack)
            if not isinstance(now, torch.Tensor):
                continue
            storage = storage_of(now)
            if storage is None or storage_key(storage) == key:
                continue
            if path.kind != "parameter" and not self._takes_its_place(graph, read, now, storage):
                continue
            self._report(graph, path, read, now, stack)
            return True
        return False

    def _takes_its_place(
        self, graph: WatchedGraph, read: Read, now: torch.Tensor, storage: Any
    ) -> bool:
        """A new tensor under the old name is a mistake only if the graph was meant to read it."""
        if tuple(now.shape) != read.shape or self.watch.machine.place(now) != read.cell.place:
            return False
        since = graph.began if graph.last is None else graph.last.at
        write = read.cell.write
        if write is not None and write.graph is None and write.at > since:
            return False
        # The next graph's input, or an output, under a name that is used again.
        return self.watch.cells.known(storage_key(storage)) is None

    def _report(
        self, graph: WatchedGraph, path: Path, read: Read, now: torch.Tensor, stack: Stack
    ) -> None:
        frames: tuple[Frame, ...] = ()
        if path.module is not None:
            module = path.module()
            frames = changed_at(self.moved, module, graph) if module is not None else ()
        else:
            frames = binding_of(path, stack, graph.outer)
        with no_torch_function():
            address = now.data_ptr()
        self.watch.report(
            _CODES[path.kind],
            f"{path.text} is another tensor than at the capture: the replay reads the old one",
            frames or self.watch.place(),
            evidence=(
                f"{list(read.shape)} at {read.data_ptr:#x} when captured, {list(now.shape)} at "
                f"{address:#x} now",
            ),
            phase="replay",
        )

    def _freed(self, graph: WatchedGraph, read: Read) -> None:
        finding = at_call(
            Finding(
                PINNED_SOURCE_FROZEN if read.cell.place == "pinned" else INPUT_FREED_BEFORE_REPLAY,
                "the tensor that is read here is gone: the replay reads whatever lies there now",
                phase="replay",
                evidence=(f"{read.call.name}, {list(read.shape)} at {read.data_ptr:#x}",),
            ),
            read.call,
            graph.record,
        )
        self.watch.findings.add(finding)

    def _number(self, graph: WatchedGraph, key: int, read: Read) -> None:
        tensor, before = read.tensor(), self._values.get((graph.number, key))
        if tensor is None or before is None:
            return
        now = _value(tensor)
        if now != before:
            self.watch.findings.add(
                at_call(
                    Finding(
                        CPU_SCALAR_TENSOR_OPERAND,
                        "a tensor of the host became a number of the kernel at the capture: the "
                        "replay does not see that it has changed",
                        phase="replay",
                        evidence=(f"{read.call.name}: {before} when captured, {now} now",),
                    ),
                    read.call,
                    graph.record,
                )
            )


def _value(tensor: torch.Tensor) -> Any:
    with no_dispatch(), no_torch_function():
        return tensor.detach().reshape(-1).tolist()[0]


class Copies(Check):
    """Writes into static inputs that do not do what they seem to."""

    def __init__(self, watch: Any) -> None:
        super().__init__(watch)
        self._heads: dict[int, _Head] = {}

    def eager(self, op: Op) -> None:
        if not op.name.startswith("aten::copy_") or len(op.args) < 2:
            self._other_write(op)
            return
        target, source = op.args[0], op.args[1]
        cell = self.watch.cells.find(target)
        if cell is None or not isinstance(source, torch.Tensor):
            return
        if cell.place == "pinned":
            self._pinned(cell)
            return
        readers = [one for one in self.watch.alive() if cell.key in one.reads]
        if not readers:
            return
        if source.dim() and source.dim() == target.dim() and source.shape != target.shape:
            self.watch.report(
                REPLAY_WITH_OTHER_SHAPE,
                f"copy_ broadcasts {list(source.shape)} to {list(target.shape)} of the static "
                "input",
                self.watch.place(),
                phase="script",
            )
            return
        self._head(cell.key, readers[0].reads[cell.key], target)

    def _other_write(self, op: Op) -> None:
        name = op.name.partition(".")[0]
        if not name.endswith("_") or not op.args or not isinstance(op.args[0], torch.Tensor):
            return
        cell = self.watch.cells.find(op.args[0])
        if cell is None:
            return
        if cell.place == "pinned":
            self._pinned(cell)
        elif name == "aten::fill_":
            for graph in self.watch.alive():
                if cell.key in graph.reads:
                    self._head(cell.key, graph.reads[cell.key], op.args[0])
                    return
        elif cell.key in self._heads:
            self._heads[cell.key].covered(op.args[0])

    def _pinned(self, cell: Any) -> None:
        last = cell.read_by
        if last is not None and not self.watch.order.done(last.stream, last.tick):
            self.watch.report(
                PINNED_SOURCE_FROZEN,
                "the host writes a pinned buffer that a replay may still be copying from",
                self.watch.place(),
                phase="script",
                evidence=("nothing has waited for the last replay that reads it",),
            )

    def _head(self, key: int, read: Read, target: torch.Tensor) -> None:
        head = self._heads.setdefault(key, _Head(read))
        head.copied(target, self.watch.place)

    def replaying(self, graph: WatchedGraph) -> None:
        for key in graph.reads:
            head = self._heads.get(key)
            if head is None:
                continue
            stale = head.stale()
            if stale is not None:
                self.watch.report(
                    BUCKET_PADDING_GARBAGE,
                    f"only the first {head.rows} of {head.before} rows are written anew: the "
                    "replay reads the others of an earlier batch",
                    stale,
                    phase="script",
                )
            head.next()


class _Head:
    """How much of a static input each batch fills, from its first row on."""

    def __init__(self, read: Read) -> None:
        self.size = read.shape[0] if read.shape else 0
        self.start = read.data_ptr
        self.row_bytes = 0
        self.rows = 0
        """That the current batch fills."""
        self.before = 0
        """That the batch before filled."""
        self.rest_is_written = True
        self.place: tuple[Frame, ...] = ()

    def copied(self, target: torch.Tensor, place: Callable[[], tuple[Frame, ...]]) -> None:
        if target.dim() == 0 or target.data_ptr() != self.start:
            self.covered(target)
            return
        self.rows = int(target.shape[0])
        self.place = place()
        if self.rows >= self.size:
            self.rest_is_written = True

    def covered(self, target: torch.Tensor) -> None:
        """Anything else that writes the buffer is taken for a reset of the rest."""
        self.rest_is_written = True
        del target

    def stale(self) -> tuple[Frame, ...] | None:
        if 0 < self.rows < self.before and not self.rest_is_written:
            return self.place
        return None

    def next(self) -> None:
        if self.rows:
            self.before = self.rows if self.rest_is_written else max(self.rows, self.before)
        self.rows, self.rest_is_written = 0, False
