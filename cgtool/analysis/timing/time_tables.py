"""Where the time of the replays goes: by line, module, op, kernel or node.

The line of work in backward is the forward line whose gradient it computes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from cgtool.analysis.graph.kernel_names import short_kernels
from cgtool.analysis.graph.places import Place, Places, module_at_depth, part_of, short_op
from cgtool.analysis.timing.roofline import COMPUTE, MEMORY, Reach
from cgtool.model.capture import Capture, Frame, Graph, Node

LINE, MODULE, OP, KERNEL, NODE = BY = ("line", "module", "op", "kernel", "node")
_MOST_DEEP = 8
_WHOLE = 1.005
"""A larger sum of shares shows as more than 100%."""
MIXED = "mixed"
_MOST = 0.5
"""Share of a row's time: a bound with less of it is not the row's; the row is ``mixed``."""


class TimeRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """All nodes of a line, module, op or kernel; or a node."""

    name: str
    nodes: int
    total_ns: int
    """GPU time of its nodes in one replay of each graph."""
    share: float
    """Of the replays. Where nodes ran at the same time, shares add up to more than 1."""
    backward_ns: int = 0
    """Of ``total_ns``."""
    bound: str | None = None
    """What limits most of its time: see ``roofline.MEANS``; ``mixed``; None: unknown."""
    bytes_per_s: float | None = None
    """Over its nodes whose bytes are known."""
    flops_per_s: float | None = None
    of_roof: float | None = None
    """Share of the nearer roof that its nodes reach, where a roof is known."""
    nearer: str | None = None
    """That roof, for most of its time: ``memory`` or ``compute``."""
    filled: float | None = None
    """Share of the device's room for blocks that its kernels take, on average over their time."""
    line: str = ""
    """The line with most of its time."""
    op: str = ""
    """The op with most of its time."""
    kernel: str = ""
    """The kernel with most of its time."""
    module: str = ""
    """The module with most of its time; of a module, its type."""
    file: str = ""
    """Of the line, with ``number`` and ``function``: where its source stands."""
    number: int = 0
    function: str = ""

    @property
    def backward(self) -> float | None:
        """Share of its time that is spent in backward."""
        return self.backward_ns / self.total_ns if self.total_ns else None


class TimeTable(msgspec.Struct, frozen=True):
    """One grouping, the most time first."""

    by: str
    depth: int | None
    """Names of a module path, for ``module``."""
    rows: tuple[TimeRow, ...]
    left_out: int
    left_out_ns: int
    has_backward: bool
    """Some of the time was spent in backward, and some was not."""

    @property
    def overlapping(self) -> bool:
        """The shares add up to more than 100%: nodes ran at the same time."""
        return sum(row.share for row in self.rows) > _WHOLE

    def remainder(self, total_ns: float, idle_ns: float) -> list[tuple[str, float, float]]:
        """(name, nanoseconds, share of ``total_ns``) of the rows that were left out, and of the
        time in which no node ran."""
        rest: list[tuple[str, float]] = []
        if self.left_out:
            rest.append((f"{self.left_out:,} more", self.left_out_ns))
        if idle_ns:
            rest.append(("idle", idle_ns))
        return [(name, time_ns, time_ns / (total_ns or 1)) for name, time_ns in rest]


@dataclass(slots=True)
class _Sum:
    """The sums over the nodes of a row."""

    nodes: int = 0
    total: int = 0
    backward: int = 0
    bytes: float = 0.0
    bytes_ns: int = 0
    flops: float = 0.0
    flops_ns: int = 0
    at_roof: float = 0.0
    roof_ns: int = 0
    compute_ns: int = 0
    """Of ``roof_ns``: nearer to the compute roof."""
    filled: float = 0.0
    sized_ns: int = 0
    bounds: Counter[str | None] = field(default_factory=Counter)
    origins: Counter[int | None] = field(default_factory=Counter)
    kernels: Counter[int | str] = field(default_factory=Counter)

    def add(self, node: Node, backward: bool, reach: Reach) -> None:
        duration = node.duration_ns or 0
        self.nodes += 1
        self.total += duration
        self.backward += duration if backward else 0
        if reach.bytes is not None:
            self.bytes += reach.bytes
            self.bytes_ns += duration
        if reach.flops is not None:
            self.flops += reach.flops
            self.flops_ns += duration
        memory, compute = reach.memory or 0.0, reach.compute or 0.0
        if memory or compute:
            self.at_roof += max(memory, compute) * duration
            self.roof_ns += duration
            self.compute_ns += duration if compute >= memory else 0
        if reach.waves is not None:
            self.filled += min(1.0, reach.waves) * duration
            self.sized_ns += duration
        self.bounds[reach.bound] += duration
        self.origins[node.origin] += duration
        self.kernels[_kernel_key(node)] += duration

    def merge(self, other: _Sum) -> None:
        for name in _ADDED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.bounds.update(other.bounds)
        self.origins.update(other.origins)
        self.kernels.update(other.kernels)

    def bound(self) -> str | None:
        (name, most), *_ = self.bounds.most_common(1)
        return name if most >= _MOST * self.total else MIXED


_ADDED = (
    "nodes", "total", "backward", "bytes", "bytes_ns", "flops", "flops_ns", "at_roof", "roof_ns",
    "compute_ns", "filled", "sized_ns",
)  # fmt: skip


def _kernel_key(node: Node) -> int | str:
    if node.kernel is not None:
        return node.kernel.function
    return f"memcpy {node.copy.kind}" if node.copy is not None else node.type


class Tables:
    """Groups the timed nodes of a capture; each name is resolved once."""

    def __init__(
        self, capture: Capture, reached: Sequence[Sequence[Reach]], total_ns: float
    ) -> None:
        """``reached`` is by graph and node id; shares are taken of ``total_ns``."""
        self._capture = capture
        self._reached = reached
        self._total = total_ns or 1.0
        self._places = Places(capture)
        self._kernels = short_kernels(function.name for function in capture.functions)
        self._lines = _Lines(capture.frames)
        self._types: dict[str, str] = {}
        """Of modules by their path, filled as they are met."""
        backwards = [
            origin.autograd_node is not None or origin.forward is not None
            for origin in capture.origins
        ]
        self._nodes = [
            (graph, node, _is_backward(graph, node, backwards), reached[index][node.id])
            for index, graph in enumerate(capture.graphs)
            for node in graph.nodes
            if node.duration_ns is not None
        ]

    def table(self, by: str, *, top: int | None = None, depth: int | None = None) -> TimeTable:
        """Rows by ``line``, ``module``, ``op``, ``kernel`` or ``node``; all, or the ``top`` ones.

        Without a ``depth`` modules are shown as deep as 16 rows, or ``top``, allow.
        """
        if by == NODE:
            return self._longest(top)
        if by == MODULE:
            depth, sums = self._modules(depth, min(top or 16, 16))
        else:
            depth, sums = None, self._sums(by)
        ordered = sorted(sums, key=lambda item: -item[1].total)
        chosen = ordered if top is None else ordered[:top]
        rest = ordered[len(chosen) :]
        backward = sum(row.backward for _, row in sums)
        return TimeTable(
            by,
            depth,
            tuple(self._row(by, name, row) for name, row in chosen),
            len(rest),
            sum(row.total for _, row in rest),
            0 < backward < sum(row.total for _, row in sums),
        )

    def _longest(self, top: int | None) -> TimeTable:
        """The longest nodes; only those that are shown are resolved."""
        ordered = sorted(self._nodes, key=lambda item: -(item[1].duration_ns or 0))
        chosen = ordered if top is None else ordered[:top]
        rest = ordered[len(chosen) :]
        rows = []
        for graph, node, backward, reach in chosen:
            row = _Sum()
            row.add(node, backward, reach)
            rows.append(self._row(NODE, f"{graph.name} {node.id}", row))
        left_out = sum(node.duration_ns or 0 for _, node, _, _ in rest)
        return TimeTable(NODE, None, tuple(rows), len(rest), left_out, False)

    def _sums(self, by: str) -> list[tuple[str, _Sum]]:
        sums: dict[str, _Sum] = {}
        names: dict[int | None, str] = {}
        for _, node, backward, reach in self._nodes:
            if by == KERNEL:
                name = self._kernel(_kernel_key(node))
            else:
                known = names.get(node.origin)
                if known is None:
                    known = names[node.origin] = self._name(by, self._places.of(node))
                name = known
            row = sums.get(name)
            if row is None:
                row = sums[name] = _Sum()
            row.add(node, backward, reach)
        return list(sums.items())

    def _name(self, by: str, place: Place) -> str:
        if by == OP:
            return place.short_op or "(outside any op)"
        return self._lines.name(place.line) or "(no line)"

    def _kernel(self, key: int | str) -> str:
        return key if isinstance(key, str) else self._kernels[self._capture.functions[key].name]

    def _modules(self, depth: int | None, limit: int) -> tuple[int, list[tuple[str, _Sum]]]:
        whole: dict[tuple[str, str | None, str], _Sum] = {}
        for graph, node, backward, reach in self._nodes:
            part, place = part_of(self._capture, graph), self._places.of(node)
            # Outside every module the annotated range says more: the optimizer's or the user's.
            outside = place.annotations[0] if place.module is None and place.annotations else ""
            key = (f"{part}: " if part else "", place.module, outside)
            if place.module is not None:
                self._types[key[0] + (place.module or "(root)")] = place.module_type or ""
            row = whole.get(key)
            if row is None:
                row = whole[key] = _Sum()
            row.add(node, backward, reach)
        deepest = max((path.count(".") + 1 for _, path, _ in whole if path), default=1)
        chosen: dict[str, _Sum] = {}
        taken = 1
        for candidate in [depth] if depth else range(1, min(deepest, _MOST_DEEP) + 1):
            sums: dict[str, _Sum] = {}
            for (prefix, module, outside), row in whole.items():
                name = prefix + (f"({outside})" if outside else module_at_depth(module, candidate))
                sums.setdefault(name, _Sum()).merge(row)
            if not depth and candidate > 1 and len(sums) > limit:
                break
            chosen, taken = sums, candidate
        return taken, list(chosen.items())

    def _row(self, by: str, name: str, row: _Sum) -> TimeRow:
        lines: Counter[Frame | None] = Counter()
        ops: Counter[str | None] = Counter()
        for origin, time in row.origins.items():
            place = self._places.of_origin(origin)
            lines[place.line] += time
            ops[place.op] += time
        frame, op = lines.most_common(1)[0][0], ops.most_common(1)[0][0]
        place = self._places.of_origin(row.origins.most_common(1)[0][0])
        return TimeRow(
            name=name,
            nodes=row.nodes,
            total_ns=row.total,
            share=row.total / self._total,
            backward_ns=row.backward,
            bound=row.bound(),
            bytes_per_s=row.bytes / row.bytes_ns * 1e9 if row.bytes_ns else None,
            flops_per_s=row.flops / row.flops_ns * 1e9 if row.flops_ns else None,
            of_roof=row.at_roof / row.roof_ns if row.roof_ns else None,
            nearer=_nearer(row) if row.roof_ns else None,
            filled=row.filled / row.sized_ns if row.sized_ns else None,
            line=self._lines.name(frame),
            op="" if op is None else short_op(op),
            kernel=self._kernel(row.kernels.most_common(1)[0][0]),
            module=self._types.get(name, "") if by == MODULE else place.module or "",
            file=frame.file if frame else "",
            number=frame.line if frame else 0,
            function=frame.function if frame else "",
        )


def _nearer(row: _Sum) -> str:
    return COMPUTE if 2 * row.compute_ns > row.roof_ns else MEMORY


def _is_backward(graph: Graph, node: Node, backwards: Sequence[bool]) -> bool:
    return graph.phase == "backward" or (node.origin is not None and backwards[node.origin])


class _Lines:
    """``model.py:42``; with the whole path where two files share a name."""

    def __init__(self, frames: Iterable[Frame]) -> None:
        short = {frame.file: frame.file.rpartition("/")[2] for frame in frames}
        often = Counter(short.values())
        self._shown = {file: file if often[name] > 1 else name for file, name in short.items()}

    def name(self, frame: Frame | None) -> str:
        return "" if frame is None else f"{self._shown[frame.file]}:{frame.line}"
