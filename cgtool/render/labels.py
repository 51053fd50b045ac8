"""The text in the boxes of a picture and in their tooltips."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from cgtool.analysis.graph.places import (
    Attribute,
    NodeDescriber,
    Place,
    file_line,
    module_at_depth,
    path_pattern,
)
from cgtool.analysis.graph.view import Item, View
from cgtool.analysis.stepped import values_text
from cgtool.analysis.units import (
    bytes_text,
    dimensions_text,
    time_text,
    total_of,
    types_text,
)
from cgtool.model.capture import Capture, Graph, Node
from cgtool.render.text import visible

WIDE = 44
"""Maximum length of a title; a longer one is cut or, for a kernel, broken before its template."""
ROW = 52
"""Maximum length of the smaller rows."""
CELL = 40
"""Maximum length of a cell in a row."""


@dataclass(frozen=True, slots=True)
class Label:
    """The rows of one box."""

    title: tuple[str, ...]
    """One line, or two for a long title."""
    rows: tuple[str, ...]
    tooltip: tuple[str, ...]


class Labels:
    """Text for the boxes and rows of one capture."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.nodes = NodeDescriber(capture)
        self.places = self.nodes.places

    def row(self, graph: Graph, view: View, item: Item) -> tuple[str, ...]:
        """The text of a box in one row: module, or range, within the folds around it; op; kernel;
        line; launch or shape; time."""
        nodes = [graph.nodes[member] for member in item.once]
        place = self.places.of(nodes[0])
        module = place.module if item.title is None else item.module
        if module is None:
            where = f"[{place.annotations[-1]}]" if place.annotations else "(no module)"
            where = item.title or where
        else:
            where = self._within(graph, view, item, module) if module else "(root)"
        duration_ns = total_of(graph.nodes[member].duration_ns for member in item.members)
        time = "" if duration_ns is None else time_text(duration_ns / item.repeats)
        if time and item.repeats > 1:
            time = f"{item.repeats} × {time}"
        if item.title is not None:
            ops = Counter(self.places.of(node).short_op or node.type for node in nodes)
            streams = len({node.stream for node in nodes})
            kinds = types_text(Counter(node.type for node in nodes))
            return where, _counts(ops, 3), kinds, f"{streams} streams" * (streams > 1), "", time
        node, title, op = nodes[0], self.nodes.title(nodes[0]), place.short_op
        entries = [each for each in self.nodes.attributes(node) if each.field.shown == "box"]
        measure = [f"runs {self.capture.graphs[body].name}" for body in node.body]
        measure += [_list(entries)] if entries else []
        if node.stream and len({graph.nodes[member].stream for member in item.members}) == 1:
            measure.append(f"on {self.capture.streams[node.stream].name}")
        kernel = title if op and op != title else ""
        return where, op or title, kernel, file_line(place.line), ", ".join(measure), time

    def _within(self, graph: Graph, view: View, item: Item, module: str) -> str:
        """The module with ``*`` for the numbers in which repeats differ; inside the module of the
        innermost fold, without its path."""
        depth = module.count(".") + 1
        each = (
            self.places.of(graph.nodes[node]).module for node in item.members[:: len(item.once)]
        )
        where = path_pattern([module_at_depth(name, depth) for name in each])
        for fold in reversed(view.folds_of(item)):
            modules = view.folds[fold].modules
            if len(modules) == 1:
                return where.removeprefix(f"{modules[0]}.")
        return where

    def of(self, node: Node) -> Label:
        """The text of the box of a node."""
        place = self.places.of(node)
        title = self.nodes.title(node)
        attributes = self.nodes.attributes(node)
        op = place.short_op if place.short_op != title else None
        where = [word for word in (op, file_line(place.line)) if word]
        joined = " · ".join(where)
        rows = [joined] if len(joined) <= ROW else where
        measure = visible(_list([each for each in attributes if each.field.shown == "box"]))
        is_short = len(measure) <= ROW  # most are, and `wrap` is slow
        rows += [measure] if is_short else wrap(measure, ROW, max_lines=3, placeholder=" …")
        rows += [f"runs {self.capture.graphs[body].name}" for body in node.body]
        if place.annotations:
            rows.append(f"[{' › '.join(place.annotations)}]")
        if node.stream:
            rows.append(f"on {self.capture.streams[node.stream].name}")
        if node.duration_ns is not None:
            rows.append(time_text(node.duration_ns))
        at = title.find("<")
        lines = (title[:at], title[at:]) if len(title) > WIDE and 0 < at < WIDE + 8 else (title,)
        tooltip = self._tooltip(node, place, attributes)
        return Label(lines, tuple(filter(None, rows)), tooltip)

    def _tooltip(
        self, node: Node, place: Place, attributes: Sequence[Attribute]
    ) -> tuple[str, ...]:
        frame, forward = place.frame, place.forward_frame
        lines = (
            f"node {node.id}: {node.type}",
            node.kernel and self.nodes.full_kernels[node.kernel.function],
            _list(attributes),
            place.op,
            place.module is not None and f"module {place.module or '(root)'} ({place.module_type})",
            forward and f"forward {forward.file}:{forward.line} in {forward.function}",
            frame and f"{frame.file}:{frame.line} in {frame.function}",
            place.autograd_node,
            *(f"annotation {name}" for name in place.annotations),
            *(f"{each.name} {each.type}: {values_text(each)}" for each in node.values),
        )
        return tuple(line for line in lines if line)


def _counts(counted: Counter[str], most: int) -> str:
    shown = ", ".join(f"{count:,} {name}" for name, count in counted.most_common(most))
    return f"{shown}, ..." if len(counted) > most else shown


def _list(attributes: Sequence[Attribute]) -> str:
    """``grid 16, block 128, registers 32, static shared memory 512 B``."""
    return ", ".join(
        f"{label} {text}" if label else text for label, text in attribute_rows(attributes)
    )


def attribute_rows(attributes: Sequence[Attribute]) -> list[tuple[str, str]]:
    """``("grid", "16")``; a label may be empty."""
    return [(field.label, _text(value, field.unit)) for field, value in attributes]


def _text(value: object, unit: str | None) -> str:
    if unit == "bytes" and isinstance(value, int):
        return bytes_text(value)
    if unit == "ns" and isinstance(value, int | float):
        return time_text(value)
    if not isinstance(value, tuple):
        return str(value)
    return dimensions_text(value) if unit == "dim3" else ", ".join(map(str, value))
