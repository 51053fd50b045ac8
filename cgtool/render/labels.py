"""What stands in the boxes of a picture, and what a tooltip adds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from textwrap import wrap

from cgtool.analysis.graph.kernel_names import demangle_all, short_kernels
from cgtool.analysis.graph.places import Place, Places, file_line
from cgtool.analysis.graph.view import Item
from cgtool.analysis.units import bytes_text, count_text, time_text, types_text
from cgtool.model.capture import Capture, Graph, Node
from cgtool.render.text import visible

WIDE = 44
"""Characters of a title; a longer one is cut or, for a kernel, broken before its template."""
ROW = 52
"""Characters of the smaller rows."""


@dataclass(frozen=True, slots=True)
class Label:
    """The rows of one box."""

    title: str
    second: str
    """The rest of a long title, or empty."""
    rows: tuple[str, ...]
    tooltip: tuple[str, ...]


class Labels:
    """Words for the nodes and groups of one capture."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.places = Places(capture)
        names = [function.name for function in capture.functions]
        self._short = short_kernels(names)
        self._full = demangle_all(names)

    def of(self, graph: Graph, item: Item) -> Label:
        """The words of a box. Points have none."""
        nodes = [graph.nodes[member] for member in item.members]
        if item.title is None:
            return self._node(nodes[0])
        return self._group(item, nodes)

    def _node(self, node: Node) -> Label:
        place = self.places.of(node)
        title = self._title(node, place)
        op = place.short_op if place.short_op != title else None
        where = [word for word in (op, file_line(place.line)) if word]
        joined = " · ".join(where)
        rows = [joined] if len(joined) <= ROW else where
        rows += wrap(visible(self._measure(node)), ROW, max_lines=3, placeholder=" …")
        rows += [f"runs {self.capture.graphs[body].name}" for body in node.body]
        if place.annotations:
            rows.append(f"[{' › '.join(place.annotations)}]")
        if node.stream:
            rows.append(f"on {self.capture.streams[node.stream].name}")
        if node.duration_ns is not None:
            rows.append(time_text(node.duration_ns))
        second = ""
        if len(title) > WIDE and 0 < title.find("<") < WIDE + 8:
            at = title.index("<")
            title, second = title[:at], title[at:]
        return Label(
            title, second, tuple(row for row in rows if row), tuple(self._tooltip(node, place))
        )

    def _title(self, node: Node, place: Place) -> str:
        if node.kernel is not None:
            return self._short[self.capture.functions[node.kernel.function].name]
        if node.copy is not None:
            return f"memcpy {node.copy.kind}"
        if node.type == "op":
            return place.short_op or "op"
        return node.type

    def _measure(self, node: Node) -> str:
        if node.kernel is not None:
            return f"grid {_size(node.kernel.grid)}, block {_size(node.kernel.block)}"
        if node.copy is not None:
            return bytes_text(node.copy.bytes)
        if node.fill is not None:
            return f"{bytes_text(node.fill.bytes)} set to {node.fill.value}"
        return node.shape or node.detail or ""

    def _tooltip(self, node: Node, place: Place) -> list[str]:
        lines = [f"node {node.id}: {node.type}"]
        if node.kernel is not None:
            launch = node.kernel
            function = self.capture.functions[launch.function]
            shared = (function.static_shared_bytes or 0) + launch.dynamic_shared_bytes
            facts = [f"grid {launch.grid}", f"block {launch.block}"]
            if function.registers is not None:
                facts.append(count_text(function.registers, "register"))
            facts.append(f"{bytes_text(shared)} shared memory")
            if launch.active_blocks is not None:
                facts.append(f"{launch.active_blocks} blocks fit on a multiprocessor")
            lines += [self._full[function.name], ", ".join(facts)]
        if place.op:
            lines.append(place.op)
        if place.module is not None:
            lines.append(f"module {place.module or '(root)'} ({place.module_type})")
        if place.forward_frame is not None:
            frame = place.forward_frame
            lines.append(f"forward {frame.file}:{frame.line} in {frame.function}")
        if place.frame is not None:
            lines.append(f"{place.frame.file}:{place.frame.line} in {place.frame.function}")
        if place.autograd_node:
            lines.append(place.autograd_node)
        lines += [f"annotation {one}" for one in place.annotations]
        lines += [text for text in (node.shape, node.detail) if text]
        return lines

    def _group(self, item: Item, nodes: list[Node]) -> Label:
        types = Counter(node.type for node in nodes)
        ops = Counter(self.places.of(node).short_op or "no op" for node in nodes)
        rows = [count_text(len(nodes), "node") if len(types) > 1 else "", types_text(types)]
        if len(ops) > 1 or item.module is not None:
            rows.append(_counts(ops, 3))
        times = [node.duration_ns for node in nodes if node.duration_ns is not None]
        if times:
            rows.append(time_text(sum(times)))
        tooltip = (
            item.title or "",
            f"{count_text(len(nodes), 'node')} from {nodes[0].id} to {nodes[-1].id}",
            types_text(types),
            _counts(ops, 20),
        )
        return Label(item.title or "(root)", "", tuple(row for row in rows if row), tooltip)


def _counts(counted: Counter[str], most: int) -> str:
    shown = ", ".join(f"{count:,} {name}" for name, count in counted.most_common(most))
    return f"{shown}, ..." if len(counted) > most else shown


def _size(dimensions: tuple[int, int, int]) -> str:
    while len(dimensions) > 1 and dimensions[-1] == 1:
        dimensions = dimensions[:-1]  # type: ignore[assignment]
    return "×".join(str(one) for one in dimensions)
