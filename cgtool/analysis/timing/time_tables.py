"""Where the time of the replays goes: by line, module, op, kernel or node.

The line of work in backward is the forward line whose gradient it computes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from cgtool.analysis.graph.kernel_names import short_kernels
from cgtool.analysis.graph.places import WORK, Places, part_of, short_op
from cgtool.analysis.timing.roofline import COMPUTE, MEMORY, Utilization
from cgtool.model.capture import Capture, Frame, Graph, Node
from cgtool.model.sources import Sources

T = TypeVar("T")

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
    """Share of the replays. If nodes ran at the same time, shares add up to more than 1."""
    backward_ns: int = 0
    bound: str | None = None
    """The limit of most of its time: see ``roofline.MEANS``; ``mixed``; None: unknown."""
    bytes_per_s: float | None = None
    """Over its nodes whose bytes are known."""
    flops_per_s: float | None = None
    of_roof: float | None = None
    """Share of the nearer roof that its nodes reach, if a roof is known."""
    nearer: str | None = None
    """That roof, for most of its time: ``memory`` or ``compute``."""
    filled: float | None = None
    """Share of the device's room for blocks that its kernels take, on average over their time."""
    line: str = ""
    op: str = ""
    kernel: str = ""
    module: str = ""
    """With most of its time, as ``line``, ``op`` and ``kernel``; of a module, its type."""
    file: str = ""
    """The file of the line, its number there, and the function that it is in."""
    number: int = 0
    function: str = ""
    source: str = ""
    """The line as it was when it was captured; empty if it is not known."""

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


class _Timed(NamedTuple):
    """A node that does work, and what a row sums up for it. One that was not timed takes 0 ns."""

    graph: Graph
    node: Node
    duration_ns: int
    backward: bool
    utilization: Utilization


class TimeTables:
    """Groups the timed nodes of a capture."""

    def __init__(
        self, capture: Capture, used: Sequence[Sequence[Utilization]], total_ns: float
    ) -> None:
        """``used`` is by graph and node id; shares are taken of ``total_ns``."""
        self._capture = capture
        self._total = total_ns or 1.0
        self._places, self._sources = Places(capture), Sources(capture.sources)
        self._kernels = short_kernels(function.name for function in capture.functions)
        files = {frame.file: frame.file.rpartition("/")[2] for frame in capture.frames}
        often = Counter(files.values())
        self._files = {file: file if often[name] > 1 else name for file, name in files.items()}
        """Names for display: the whole path where two share a name."""
        self._types: dict[str, str] = {}
        """The types of modules by their path, filled by their table."""
        backwards = {
            index
            for index, origin in enumerate(capture.origins)
            if origin.autograd_node is not None or origin.forward is not None
        }
        self._nodes = [
            _Timed(
                graph,
                node,
                node.duration_ns or 0,
                graph.phase == "backward" or node.origin in backwards,
                utilizations[node.id],
            )
            for graph, utilizations in zip(capture.graphs, used, strict=True)
            for node in graph.nodes
            if node.type in WORK
        ]

    def table(self, by: str, *, top: int | None = None, depth: int | None = None) -> TimeTable:
        """Rows by ``line``, ``module``, ``op``, ``kernel`` or ``node``; all, or the ``top`` ones.

        Without a ``depth`` modules are shown as deep as 16 rows, or ``top``, allow.
        """
        groups: Iterable[tuple[str, list[_Timed]]]
        if by == NODE:
            groups = ((f"{timed.graph.name} {timed.node.id}", [timed]) for timed in self._nodes)
        elif by == MODULE:
            depth, groups = self._by_module(depth, min(top or 16, 16))
        else:
            groups = self._by_name(by)
        ordered = sorted(
            ((sum(timed.duration_ns for timed in nodes), name, nodes) for name, nodes in groups),
            key=lambda row: -row[0],
        )
        chosen = ordered[:top]
        rest = ordered[len(chosen) :]
        backward = sum(timed.duration_ns for timed in self._nodes if timed.backward)
        return TimeTable(
            by,
            depth if by == MODULE else None,
            tuple(self._row(by, name, total, nodes) for total, name, nodes in chosen),
            len(rest),
            sum(total for total, _, _ in rest),
            by != NODE and 0 < backward < sum(timed.duration_ns for timed in self._nodes),
        )

    def _by_name(self, by: str) -> Iterable[tuple[str, list[_Timed]]]:
        groups: dict[str, list[_Timed]] = defaultdict(list)
        for timed in self._nodes:
            place = self._places.of(timed.node)
            if by == KERNEL:
                name = self._kernel(timed.node)
            elif by == OP:
                name = place.short_op or "(outside any op)"
            else:
                name = self._line(place.line) or "(no line)"
            groups[name].append(timed)
        return groups.items()

    def _by_module(
        self, depth: int | None, limit: int
    ) -> tuple[int, Iterable[tuple[str, list[_Timed]]]]:
        """The depth that was used, and the groups."""
        modules: dict[tuple[str, int | None], list[_Timed]] = defaultdict(list)
        for timed in self._nodes:
            part, place = part_of(self._capture, timed.graph), self._places.of(timed.node)
            prefix = f"{part}: " if part else ""
            modules[prefix, timed.node.origin].append(timed)
            if place.module is not None:
                self._types[prefix + (place.module or "(root)")] = place.module_type or ""

        def groups(depth: int) -> dict[str, list[_Timed]]:
            result: dict[str, list[_Timed]] = defaultdict(list)
            for (prefix, origin), nodes in modules.items():
                result[prefix + self._places.of_origin(origin).module_at(depth)] += nodes
            return result

        if depth:
            return depth, groups(depth).items()
        paths = (self._places.of_origin(origin).module for _, origin in modules)
        deepest = max((path.count(".") + 1 for path in paths if path), default=1)
        depth, chosen = 1, groups(1)
        while depth < min(deepest, _MOST_DEEP) and len(deeper := groups(depth + 1)) <= limit:
            depth, chosen = depth + 1, deeper
        return depth, chosen.items()

    def _row(self, by: str, name: str, total: int, nodes: Sequence[_Timed]) -> TimeRow:
        bounds: Counter[str | None] = Counter()
        origins: Counter[int | None] = Counter()
        kernels: Counter[str] = Counter()
        moved = flops = at_roof = filled = 0.0
        backward = moved_ns = flops_ns = roof_ns = compute_ns = sized_ns = 0
        for _, node, duration, is_backward, utilization in nodes:
            bounds[utilization.bound] += duration
            origins[node.origin] += duration
            kernels[self._kernel(node)] += duration
            backward += duration if is_backward else 0
            if utilization.bytes is not None:
                moved += utilization.bytes
                moved_ns += duration
            if utilization.flops is not None:
                flops += utilization.flops
                flops_ns += duration
            memory, compute = utilization.memory or 0.0, utilization.compute or 0.0
            if memory or compute:
                at_roof += max(memory, compute) * duration
                roof_ns += duration
                compute_ns += duration if compute >= memory else 0
            if utilization.waves is not None:
                filled += min(1.0, utilization.waves) * duration
                sized_ns += duration
        lines: Counter[Frame | None] = Counter()
        ops: Counter[str | None] = Counter()
        for origin, time in origins.items():
            place = self._places.of_origin(origin)
            lines[place.line] += time
            ops[place.op] += time
        frame, op = _most(lines), _most(ops)
        bound, bound_ns = bounds.most_common(1)[0]
        module = self._places.of_origin(_most(origins)).module or ""
        nearer = COMPUTE if 2 * compute_ns > roof_ns else MEMORY
        return TimeRow(
            name=name,
            nodes=len(nodes),
            total_ns=total,
            share=total / self._total,
            backward_ns=backward,
            bound=bound if bound_ns >= _MOST * total else MIXED,
            bytes_per_s=moved / moved_ns * 1e9 if moved_ns else None,
            flops_per_s=flops / flops_ns * 1e9 if flops_ns else None,
            of_roof=at_roof / roof_ns if roof_ns else None,
            nearer=nearer if roof_ns else None,
            filled=filled / sized_ns if sized_ns else None,
            line=self._line(frame),
            op="" if op is None else short_op(op),
            kernel=_most(kernels),
            module=self._types.get(name, "") if by == MODULE else module,
            file=frame.file if frame else "",
            number=frame.line if frame else 0,
            function=frame.function if frame else "",
            source=self._sources.line(frame).strip(),
        )

    def _kernel(self, node: Node) -> str:
        if node.kernel is not None:
            return self._kernels[self._capture.functions[node.kernel.function].name]
        return f"memcpy {node.copy.kind}" if node.copy is not None else node.type

    def _line(self, frame: Frame | None) -> str:
        return "" if frame is None else f"{self._files[frame.file]}:{frame.line}"


def _most(times: Counter[T]) -> T:
    return times.most_common(1)[0][0]
