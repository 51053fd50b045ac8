"""The text in the boxes of a picture and in their tooltips."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from cgtool.analysis.graph.places import Attribute, NodeDescriber, Place, file_line
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
    """Text for the nodes and groups of one capture."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.nodes = NodeDescriber(capture)
        self.places = self.nodes.places

    def of(self, graph: Graph, item: Item) -> Label:
        """The text of a box. Points have none."""
        nodes = [graph.nodes[member] for member in item.members]
        if item.title is None:
            return self._node(nodes[0])
        return self._group(item, nodes)

    def _node(self, node: Node) -> Label:
        place = self.places.of(node)
        title = self.nodes.title(node)
        attributes = self.nodes.attributes(node)
        op = place.short_op if place.short_op != title else None
        where = [word for word in (op, file_line(place.line)) if word]
        joined = " · ".join(where)
        rows = [joined] if len(joined) <= ROW else where
        measure = _list([one for one in attributes if one.field.shown == "box"])
        rows += wrap(visible(measure), ROW, max_lines=3, placeholder=" …")
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
        tooltip = self._tooltip(node, place, attributes)
        return Label(title, second, tuple(row for row in rows if row), tooltip)

    def _tooltip(
        self, node: Node, place: Place, attributes: Sequence[Attribute]
    ) -> tuple[str, ...]:
        lines = [f"node {node.id}: {node.type}"]
        if node.kernel is not None:
            lines.append(self.nodes.full_kernels[node.kernel.function])
        if attributes:
            lines.append(_list(attributes))
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
        return (*lines, *(f"annotation {name}" for name in place.annotations))

    def _group(self, item: Item, nodes: list[Node]) -> Label:
        totals = self.nodes.totals(nodes)
        types, ops = totals.types, totals.ops
        rows = [count_text(len(nodes), "node") if len(types) > 1 else "", types_text(types)]
        if len(ops) > 1 or item.module is not None:
            rows.append(_counts(ops, 3))
        if totals.duration_ns is not None:
            rows.append(time_text(totals.duration_ns))
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


def _list(attributes: Sequence[Attribute]) -> str:
    """``grid 16, block 128, registers 32, static shared memory 512 B``."""
    return ", ".join(
        f"{field.label} {_text(value, field.unit)}" if field.label else _text(value, field.unit)
        for field, value in attributes
    )


def _text(value: object, unit: str | None) -> str:
    if unit == "bytes" and isinstance(value, int):
        return bytes_text(value)
    if unit == "ns" and isinstance(value, int | float):
        return time_text(value)
    if isinstance(value, tuple):
        return _sizes(value) if unit == "dim3" else ", ".join(map(str, value))
    return str(value)


def _sizes(dimensions: tuple[int, ...]) -> str:
    """``16×4``: without the last sizes that are 1."""
    while len(dimensions) > 1 and dimensions[-1] == 1:
        dimensions = dimensions[:-1]
    return "×".join(map(str, dimensions))
