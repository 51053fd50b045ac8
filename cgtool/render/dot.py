"""A capture as DOT text that people read: clusters by module, colour by type, true edges."""

from __future__ import annotations

from collections import Counter, defaultdict
from html import escape

from cgtool.analysis.collapse import Box, Drawing
from cgtool.analysis.names import demangle, short_kernel
from cgtool.analysis.places import Place, Places, file_line
from cgtool.model.capture import Capture, Node

FILL = {
    "kernel": "#dbe9f6",
    "op": "#dbe9f6",
    "memcpy": "#fde5c8",
    "memset": "#e7e1ef",
    "host": "#f8d5d3",
    "child": "#d9ead3",
    "conditional": "#d9ead3",
}
OTHER_FILL = "#eeeeee"
_SOFT = (
    "#dbe9f6", "#d9ead3", "#fde5c8", "#e7e1ef", "#f8d5d3", "#d5eeee", "#f5efc9", "#ecdcd0",
)  # fmt: skip
_INK, _QUIET, _LINE = "#1f2933", "#66717d", "#9aa5b1"


def quote(text: str) -> str:
    """A DOT string. Control characters show as escapes; nothing in it is read as markup."""
    clean = "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in text
    )
    return '"' + clean.replace("\\", "\\\\").replace('"', '\\"') + '"'


def html_text(text: str) -> str:
    """Text inside an HTML-like label."""
    clean = "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in text
    )
    return escape(clean, quote=True)


def _cut(text: str, size: int = 48) -> str:
    return text if len(text) <= size else text[: size - 1] + "…"


class DotRenderer:
    """Writes one digraph for all drawings."""

    def __init__(self, capture: Capture, *, color: str = "type", depth: int = 3) -> None:
        self.capture = capture
        self.color = color
        self.depth = depth
        self.places = Places(capture)
        self.lines: list[str] = []
        self._shades: dict[str, str] = {}
        self._clusters = 0

    def render(self, drawings: list[Drawing]) -> str:
        """The text of the digraph, newline at the end."""
        capture = self.capture
        where = capture.environment.device
        if capture.environment.simulated:
            where = "simulated: ops on CPU tensors, no kernels"
        title = f"{capture.entry.spec}   {where}, torch {capture.environment.torch}"
        self.lines = [
            "digraph cgtool {",
            f"  graph [label={quote(title)}, labelloc=t, labeljust=l, fontname=Helvetica, "
            f'fontsize=14, fontcolor="{_INK}", rankdir=TB, nodesep=0.2, ranksep=0.28, '
            "bgcolor=white, pad=0.3];",
            f'  node [shape=box, style="filled,rounded", fontname=Helvetica, fontsize=10, '
            f'fontcolor="{_INK}", color="{_LINE}", penwidth=0.8, margin="0.1,0.05"];',
            f'  edge [color="{_LINE}", arrowsize=0.6, penwidth=0.9];',
        ]
        for drawing in drawings:
            self._graph(drawing)
        self.lines.append("}")
        return "\n".join(self.lines) + "\n"

    def _graph(self, drawing: Drawing) -> None:
        graph = self.capture.graphs[drawing.graph]
        types = Counter(node.type for node in graph.nodes)
        label = f"{graph.name}: " + ", ".join(f"{n} {kind}" for kind, n in types.most_common())
        if drawing.folded_to:
            label += f", folded to {len(drawing.boxes)} boxes ({drawing.folded_to})"
        if drawing.hidden:
            label += f", {drawing.hidden} not selected"
        self.lines.append(f'  subgraph "cluster_g{drawing.graph}" {{')
        self.lines.append(
            f"    label={quote(label)}; labeljust=l; fontname=Helvetica; fontsize=12; "
            f'style=rounded; color="{_LINE}"; margin=14;'
        )
        tree: dict[str, list[int]] = defaultdict(list)
        for number, box in enumerate(drawing.boxes):
            tree[self._module(drawing, box)].append(number)
        self._cluster(drawing, tree, "", 0, "    ")
        self.lines.append("  }")
        prefix = f"g{drawing.graph}b"
        for link in drawing.links:
            style = ""
            if link.through:
                style = ' [style=dashed, tooltip="through nodes that are not shown"]'
            elif link.programmatic:
                style = ' [style=dotted, tooltip="programmatic: the kernels may overlap"]'
            self.lines.append(f"  {prefix}{link.source} -> {prefix}{link.target}{style};")

    def _module(self, drawing: Drawing, box: Box) -> str:
        node = self.capture.graphs[drawing.graph].nodes[box.nodes[0]]
        module = self.places.of(node).module or ""
        return ".".join(module.split(".")[: self.depth]) if self.depth else ""

    def _cluster(
        self, drawing: Drawing, tree: dict[str, list[int]], path: str, level: int, pad: str
    ) -> None:
        """Boxes of ``path`` itself, then a cluster for each name below it."""
        below: dict[str, dict[str, list[int]]] = {}
        for module, boxes in tree.items():
            if module == path:
                for number in boxes:
                    self._box(drawing, number, pad)
                continue
            rest = module[len(path) + 1 :] if path else module
            name = rest.split(".")[0]
            full = f"{path}.{name}" if path else name
            below.setdefault(full, {})[module] = boxes
        for full, inner in below.items():
            self._clusters += 1
            self.lines.append(f'{pad}subgraph "cluster_m{self._clusters}" {{')
            self.lines.append(
                f"{pad}  label={quote(full)}; labeljust=l; fontsize=10; fontname=Helvetica; "
                f'fontcolor="{_QUIET}"; style="rounded,filled"; color="#d5dbe1"; '
                f'fillcolor="{"#f7f9fb" if level % 2 == 0 else "#ffffff"}"; margin=8;'
            )
            self._cluster(drawing, inner, full, level + 1, pad + "  ")
            self.lines.append(f"{pad}}}")

    def _box(self, drawing: Drawing, number: int, pad: str) -> None:
        box = drawing.boxes[number]
        nodes = self.capture.graphs[drawing.graph].nodes
        node = nodes[box.nodes[0]]
        place = self.places.of(node)
        if len(box.nodes) == 1:
            title, details, tooltip = self._single(node, place)
        else:
            title, details, tooltip = self._folded([nodes[one] for one in box.nodes], box)
        rows = [f"<B>{html_text(_cut(title))}</B>"]
        rows += [
            f'<FONT POINT-SIZE="9" COLOR="{_QUIET}">{html_text(_cut(one, 56))}</FONT>'
            for one in details
            if one
        ]
        label = '<BR ALIGN="LEFT"/>'.join(rows) + '<BR ALIGN="LEFT"/>'
        self.lines.append(
            f"{pad}g{drawing.graph}b{number} [label=<{label}>, "
            f'fillcolor="{self._fill(node, place)}", tooltip={quote(tooltip)}];'
        )

    def _single(self, node: Node, place: Place) -> tuple[str, list[str], str]:
        op = place.short_op or "(outside any op)"
        where = file_line(place.line)
        tooltip = [f"node {node.id}, {node.type}", place.op or "", place.module or ""]
        details = [f"{op}  {where}"]
        if node.kernel is not None:
            launch = node.kernel
            function = self.capture.functions[launch.function]
            title = short_kernel(function.name)
            details.append(f"{_size(launch.grid)} × {_size(launch.block)}")
            tooltip.append(demangle(function.name))
            shared = (function.static_shared_bytes or 0) + launch.dynamic_shared_bytes
            tooltip.append(f"{function.registers} registers, {shared} B shared")
        elif node.copy is not None:
            title = f"memcpy {node.copy.kind}"
            details.append(f"{node.copy.bytes:,} bytes")
        elif node.fill is not None:
            title = "memset"
            details.append(f"{node.fill.bytes:,} bytes = {node.fill.value}")
        elif node.type == "op":
            title = op
            details = [f"{where}  {node.shape or ''}"]
        else:
            title = node.type
            details.append(node.detail or "")
        if place.autograd_node:
            tooltip.append(place.autograd_node)
        if place.annotations:
            details.append(" › ".join(place.annotations))
        if node.stream:
            details.append(self.capture.streams[node.stream].name)
        if place.line is not None:
            tooltip.append(f"{place.line.file}:{place.line.line} in {place.line.function}")
        return title, details, "\n".join(one for one in tooltip if one)

    def _folded(self, nodes: list[Node], box: Box) -> tuple[str, list[str], str]:
        kinds = Counter(node.type for node in nodes)
        ops = Counter(self.places.of(node).short_op or "?" for node in nodes)
        title = box.group.partition(" #")[0]
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        common = ", ".join(f"{count} {op}" for op, count in ops.most_common(3))
        tooltip = f"nodes {nodes[0].id} to {nodes[-1].id}: " + ", ".join(
            f"{count} {op}" for op, count in ops.most_common(12)
        )
        return title, [counts, common], tooltip

    def _fill(self, node: Node, place: Place) -> str:
        if self.color == "type":
            return FILL.get(node.type, OTHER_FILL)
        if self.color == "stream":
            key = str(node.stream)
        else:
            key = ".".join((place.module or "").split(".")[:2])
        return self._shades.setdefault(key, _SOFT[len(self._shades) % len(_SOFT)])


def _size(dimensions: tuple[int, int, int]) -> str:
    x, y, z = dimensions
    return str(x) if y == z == 1 else f"({x},{y},{z})"
