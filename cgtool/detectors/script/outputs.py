"""What becomes of a graph's outputs: read too early, kept too long, clobbered, pinned."""

from __future__ import annotations

import ast
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from cgtool.detectors.script.check import Check
from cgtool.findings.registry import code
from cgtool.model.capture import Frame
from cgtool.observe.effects import reads_values, written_by
from cgtool.observe.script.names import locals_of, stack_of
from cgtool.observe.script.state import Cell, Op, WatchedGraph
from cgtool.observe.source import tree_of

CAPTURE_DOES_NOT_EXECUTE = code("capture-does-not-execute")
LEAK_BY_LIVE_REFERENCES = code("leak-by-live-references")
OUTPUT_OVERWRITTEN_BY_NEXT_REPLAY = code("output-overwritten-by-next-replay")
TEARDOWN_USE_AFTER_FREE = code("teardown-use-after-free")

_PUTS = frozenset(("append", "appendleft", "extend", "insert", "add", "put", "setdefault"))


class Outputs(Check):
    """``capture-does-not-execute`` and ``output-overwritten-by-next-replay``."""

    def eager(self, op: Op) -> None:
        if not reads_values(op.func, op.name):
            return
        written = {id(one) for one in written_by(op.func, op.args, op.kwargs)}
        for value in (*op.args, *op.kwargs.values()):
            if isinstance(value, torch.Tensor):
                if id(value) not in written:
                    self._read(value)
            elif isinstance(value, list | tuple):
                tensors = [one for one in value if isinstance(one, torch.Tensor)]
                for one in tensors:
                    self._read(one)
                self._same_memory(tensors)

    def waited(self, why: str, tensor: Any) -> None:
        if isinstance(tensor, torch.Tensor):
            self._read(tensor)
            cell = self.watch.cells.find(tensor)
            if cell is not None and cell.made_in is not None and cell.made_in.replays > 1:
                place = self._kept(tensor)
                if place is not None:
                    self._overwritten(cell.made_in, place)

    def _read(self, tensor: torch.Tensor) -> None:
        cell = self.watch.cells.find(tensor)
        if cell is None:
            return
        for graph in self.watch.alive():
            if graph.replays == 0 and self._is_result(graph, cell):
                self.watch.report(
                    CAPTURE_DOES_NOT_EXECUTE,
                    f"what {graph.name} computes is read before its first replay: a capture runs "
                    "nothing",
                    self.watch.place(),
                    phase="script",
                )
                return

    def _is_result(self, graph: WatchedGraph, cell: Cell) -> bool:
        if cell.made_in is graph:
            return cell.write is None
        read = graph.reads.get(cell.key)
        if read is None or not read.first_is_write or cell.made_in is not None:
            return False
        # State that the graph overwrites may have a value of its own before.
        tensor = read.tensor()
        fed = cell.write is not None and cell.write.at > graph.began
        return not fed and not isinstance(tensor, torch.nn.Parameter)

    def _same_memory(self, tensors: list[torch.Tensor]) -> None:
        seen: dict[tuple[int, tuple[int, ...]], torch.Tensor] = {}
        for one in tensors:
            cell = self.watch.cells.find(one)
            if cell is None or cell.made_in is None or cell.made_in.replays < 2:
                continue
            known = seen.setdefault((one.data_ptr(), tuple(one.shape)), one)
            if known is one and sum(other is one for other in tensors) < 2:
                continue
            self._overwritten(cell.made_in, self._kept(one) or self.watch.place())
            return

    def _overwritten(self, graph: WatchedGraph, place: tuple[Frame, ...]) -> None:
        if graph.part is not None and graph.part.twice:
            return
        self.watch.report(
            OUTPUT_OVERWRITTEN_BY_NEXT_REPLAY,
            f"the output of {graph.name} is kept several times: all are one buffer, which holds "
            "the last replay",
            place,
            phase="script",
        )

    def _kept(self, tensor: torch.Tensor) -> tuple[Frame, ...] | None:
        """The line that puts the tensor, again and again, into a container."""
        where = tensor.data_ptr(), tuple(tensor.shape)
        for frame in stack_of(self.watch.frame()).values():
            names = locals_of(frame) if frame.f_code.co_flags & 1 else {}
            names.update(
                (name, frame.f_globals[name])
                for name in frame.f_code.co_names
                if name in frame.f_globals
            )
            for name, value in names.items():
                held = [
                    one
                    for one in _content(value)
                    if isinstance(one, torch.Tensor)
                    and self.watch.cells.find(one) is not None
                    and (one.data_ptr(), tuple(one.shape)) == where
                ]
                if len(held) > 1:
                    line = _puts_into(frame.f_code.co_filename, name)
                    if line is None:
                        return None
                    return (Frame(frame.f_code.co_filename, line, frame.f_code.co_qualname),)
        return None


def _content(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple | deque | set):
        yield from list(value)[:4096]
    elif isinstance(value, dict):
        yield from list(value.values())[:4096]


def _puts_into(file: str, name: str) -> int | None:
    """The first line of a file that puts something into the container of this name."""
    tree = tree_of(file)
    found: list[int] = []
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if node.func.attr in _PUTS and isinstance(owner, ast.Name) and owner.id == name:
                found.append(node.lineno)
        elif isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                inner = target.value if isinstance(target, ast.Subscript) else target
                puts = isinstance(node, ast.AugAssign) or inner is not target
                if puts and isinstance(inner, ast.Name) and inner.id == name:
                    found.append(node.lineno)
    return min(found, default=None)


class Remains(Check):
    """Memory of a graph after its end: ``leak-by-live-references``, ``teardown-use-after-free``."""

    _SMALL_PART = 4
    """A view of less than one part in so many pins far more than it shows."""

    def __init__(self, watch: Any) -> None:
        super().__init__(watch)
        self._views: list[tuple[weakref.ref[torch.Tensor], int, tuple[Frame, ...]]] = []
        self._running: list[tuple[WatchedGraph, tuple[Frame, ...]]] = []

    def returned(self, tensor: torch.Tensor) -> None:
        cell = self.watch.cells.find(tensor)
        if cell is not None and cell.made_in is not None:
            size = tensor.numel() * tensor.element_size()
            if size * self._SMALL_PART <= cell.bytes:
                self._views.append((weakref.ref(tensor), cell.key, self.watch.place()))

    def dropped(self, graph: WatchedGraph) -> None:
        last = graph.last
        if last is not None and not self.watch.order.done(last.stream, last.tick):
            self._running.append((graph, self.watch.place()))

    def emptied(self) -> None:
        for graph, place in self._running:
            last = graph.last
            if last is not None and not self.watch.order.done(last.stream, last.tick):
                self.watch.report(
                    TEARDOWN_USE_AFTER_FREE,
                    "the graph goes while its last replay may still run, and its memory is given "
                    "back",
                    place,
                    phase="script",
                )
        self._running.clear()
        pools = {one.pool for one in self.watch.alive()}
        for reference, key, place in self._views:
            cell = self.watch.cells.known(key)
            owner = cell.made_in if cell is not None else None
            if cell is None or owner is None or owner.live() or owner.pool in pools:
                continue
            tensor = reference()
            if tensor is not None:
                size = tensor.numel() * tensor.element_size()
                self.watch.report(
                    LEAK_BY_LIVE_REFERENCES,
                    f"a view of {size} bytes keeps {cell.bytes} bytes of the pool of a graph that "
                    "is gone",
                    place,
                    phase="script",
                )
