"""A capture as DOT, one cluster for each graph, its boxes, and the edges between them; and the
layout as SVG or PNG: by the system's Graphviz when there is one, else the pip-installed one.

A box is one node or group inside the frames of its modules; or, in a view with rows, a straight run
of them with one row each, in columns of a screen's height.

Colors are soft fills under dark text; their words tell them apart in grayscale too.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from graphviz.backend import dot_command, execute

from cgtool.analysis.graph.fold import Run, runs
from cgtool.analysis.graph.places import module_at_depth, part_of
from cgtool.analysis.graph.view import Fold, Item, Link, View, Visit, module_of, module_tree
from cgtool.analysis.units import count_text, names_text, time_text
from cgtool.model.capture import Capture, Graph
from cgtool.model.failure import machine, usage
from cgtool.render.labels import CELL, ROW, WIDE, Label, Labels
from cgtool.render.text import cut, html_text, machine_text, tooltip

INK = "#1f2937"
QUIET = "#4b5563"
EDGE = "#7d8896"
PAPER = "#ffffff"

Shade = tuple[str, str]
"""Fill and border."""

PHASES = {
    "forward": ("#f5f8fc", "#b9c8dc"),
    "backward": ("#fbf7f1", "#dccdb5"),
    "step": ("#f6f8f5", "#c3d0bd"),
}

BLUE, ORANGE = ("#dce9f9", "#8fb3dd"), ("#fde8cf", "#e0b177")
VIOLET, RED = ("#e9e5f5", "#ada1d3"), ("#f9dcdc", "#d99a9a")
GREEN, TEAL = ("#dcf0e3", "#8fc3a3"), ("#d6efee", "#86c1be")
OLIVE, YELLOW = ("#eef3d3", "#b7c383"), ("#f6f0c8", "#cdbf73")
PINK, SAND = ("#f3dfee", "#cf9fc2"), ("#e6e2d8", "#b5ab93")
OTHER = ("#eceff2", "#b3bcc6")
MIXED = ("#f1f4f8", "#9fb0c4")
"""Color of a group with nodes of several types."""

TYPES = {
    "kernel": BLUE,
    "op": BLUE,
    "memcpy": ORANGE,
    "memset": VIOLET,
    "host": RED,
    "child": GREEN,
    "conditional": TEAL,
    "alloc": OLIVE,
    "free": OLIVE,
}
"""By node type; the rest share ``OTHER``."""
SOFT = (BLUE, ORANGE, GREEN, VIOLET, RED, TEAL, YELLOW, PINK, SAND)
"""Colors of modules and streams, in order of their first node."""
HEAT = (
    ("#f7f5f2", "#cfc9c0"),
    ("#fdf1df", "#e5cba5"),
    ("#fde4c6", "#e2b47c"),
    ("#fbd2a8", "#da9c60"),
    ("#f8bd94", "#d08357"),
    ("#f4a687", "#c06648"),
)
"""Colors from the shortest time to the longest."""

BAND = "#e6ebf1"
"""Behind the heading of a fold, and beside its rows."""
COLUMN_ROWS = 44
"""So many rows fit the height of a screen."""
GRAPHS_BESIDE = 3

_FONT = "Helvetica"
"""Graphviz knows its metrics without asking a font library, and writes a fallback into SVG."""
_LEGEND_ROW = 8
_SVG_TEXT = re.compile(rb'<text [^>]*?\bx="(?P<x>[^"]*)" y="(?P<y>[^"]*)"')
_XDOT_TEXT = re.compile(rb"\bT (-?[\d.]+) (-?[\d.]+) -?[01] ([\d.]+) \d+ -")

LAYOUT_SECONDS = 120
PIP_PROGRAM = "graphviz-pure"


def render(
    capture: Capture,
    views: Sequence[View],
    *,
    color: str = "type",
    depth: int = 3,
    note: str | None = None,
) -> str:
    """DOT text of the views, newline at the end.

    ``color`` is ``type``, ``module``, ``stream`` or ``time``; ``depth`` is how many names of a
    module path become nested clusters of a view without rows (0: none); ``note`` is shown in the
    title.
    """
    return _Picture(capture, views, color, depth).text(note)


class _Picture:
    def __init__(self, capture: Capture, views: Sequence[View], color: str, depth: int) -> None:
        self.capture = capture
        self.views = views
        self.color = color
        self.depth = depth
        self.labels = Labels(capture)
        self.lines: list[str] = []
        self.legend: dict[str, Shade] = {}
        self._clusters = 0
        self._boxes: dict[tuple[int, int], tuple[str, str]] = {}
        """By graph and position of an item: the box where its run begins, and where it ends."""
        self._longest = max(
            (self._time(capture.graphs[view.graph], item) for view in views for item in view.items),
            default=0,
        )

    def text(self, note: str | None) -> str:
        for view in self.views:
            self._graph(view)
        self._bodies()
        self._wrap()
        # The title holds the legend, which is complete once everything is drawn.
        head = [
            "digraph cgtool {",
            f"  graph [label={self._title(note)}, labelloc=t, labeljust=l, "
            f'fontname="{_FONT}", fontsize=11, fontcolor="{INK}", rankdir=TB, '
            f'nodesep=0.22, ranksep=0.24, compound=true, bgcolor="{PAPER}", pad=0.3];',
            f'  node [shape=box, style="filled,rounded", fontname="{_FONT}", fontsize=10, '
            f'fontcolor="{INK}", penwidth=0.9, margin="0.11,0.06", height=0.3];',
            f'  edge [color="{EDGE}", arrowsize=0.6, penwidth=0.9];',
        ]
        return "\n".join([*head, *self.lines, "}"]) + "\n"

    def _title(self, note: str | None) -> str:
        environment = self.capture.environment
        simulated = "simulated device (ops on CPU tensors, no kernels)"
        device = simulated if environment.simulated else environment.device
        where = machine_text(device, environment.torch)
        name = html_text(cut(self.capture.entry.spec, 90))
        rows = [f'<FONT POINT-SIZE="15"><B>{name}</B></FONT>']
        rows += [
            f'<FONT COLOR="{QUIET}">{html_text(text)}</FONT>'
            for text in (where, *self.capture.general_notes, note, self._links())
            if text
        ]
        if len(self.legend) > 1:
            # Types as the palette lists them; all else in order of appearance.
            order = {name: number for number, name in enumerate(TYPES)}
            shades: dict[Shade, list[str]] = {}
            for name in sorted(self.legend, key=lambda name: order.get(name, len(order))):
                shades.setdefault(self.legend[name], []).append(name)
            cells = [
                f'<TD BGCOLOR="{fill}" COLOR="{line}" BORDER="1" STYLE="ROUNDED" CELLPADDING="4">'
                f"{html_text(cut(', '.join(names), 40) if len(names) < 4 else 'other types')}</TD>"
                for (fill, line), names in shades.items()
            ]
            lines = [
                "".join(cells[at : at + _LEGEND_ROW]) for at in range(0, len(cells), _LEGEND_ROW)
            ]
            rows.append(
                '<TABLE ALIGN="LEFT" BORDER="0" CELLBORDER="0" CELLSPACING="5">'
                f"{''.join(f'<TR>{line}</TR>' for line in lines)}</TABLE>"
            )
        table = "".join(f'<TR><TD ALIGN="LEFT">{row}</TD></TR>' for row in rows)
        return f'<<TABLE BORDER="0" CELLSPACING="1" CELLPADDING="1">{table}</TABLE>>'

    def _links(self) -> str:
        """The meaning of links that are not plain."""
        links = [link for view in self.views if not view.rows for link in view.links]
        drawn = [link for view in self.views if view.rows for link in runs(view)[1]]
        inside = [link for view in self.views if view.rows for link in view.links]
        words = []
        if any(view.rows for view in self.views):
            words.append("each row waits for the one above it")
        if any(link.hidden for link in inside):
            words.append("… after nodes that are not shown")
        if any(link.programmatic for link in inside):
            words.append("‖ may overlap the one above")
        if any(link.hidden for link in links + drawn):
            words.append("dashed gray: through nodes that are not shown")
        if any(link.programmatic for link in links + drawn):
            words.append("orange: programmatic, the kernels may overlap")
        if any(link.edges > 1 for link in drawn):
            words.append("a number at an arrow: that many edges")
        if any(link.carried is not None for link in drawn):
            words.append("dotted: to the next repeat")
        if any(self.capture.graphs[view.graph].parent for view in self.views):
            words.append("dashed green: to the graph that the node runs")
        return "; ".join(words)

    def _graph(self, view: View) -> None:
        graph = self.capture.graphs[view.graph]
        shown = sum(len(item.members) for item in view.items)
        part = part_of(self.capture, graph)
        fill, line = PHASES.get(graph.phase, (PAPER, OTHER[1]))
        words = [cut(part, 40)] if part else []
        words += [count_text(view.node_count, "node"), count_text(len(graph.edges), "edge")]
        if shown < view.node_count:
            words.append(f"{shown:,} selected")
        self.lines += [
            f"  subgraph cluster_graph{view.graph} {{",
            f"    label=<<B>{html_text(graph.name)}</B>"
            f'<FONT COLOR="{QUIET}">   {html_text(", ".join(words))}</FONT>>; '
            "labeljust=l; fontsize=12; margin=14; penwidth=1.2; "
            'style="rounded,filled"; '
            f'color="{line}"; fillcolor="{fill}";',
        ]
        if not view.items:
            text = "nothing selected" if view.node_count else "empty graph"
            self.lines.append(f'    "g{view.graph}" [label="{text}", shape=plaintext, style=""];')
        links = view.links
        if view.rows:
            drawn, links = runs(view)
            self._frame(view, drawn, None, "    ")
        else:
            self._visit(view, module_tree(view, graph, self.labels.places, self.depth), "    ")
        for link in links:
            self._link(view, link)
        self.lines.append("  }")

    def _link(self, view: View, link: Link) -> None:
        styles = []
        if link.hidden:
            styles = ["style=dashed", 'tooltip="through nodes that are not shown"']
        elif link.programmatic:
            styles = ['color="#c2703d"', "style=bold", 'tooltip="programmatic: may overlap"']
        if link.carried is not None:
            styles = ["style=dotted", "constraint=false", 'tooltip="to the next repeat"']
        if view.rows and link.edges > 1:
            font = f'fontname="{_FONT}", fontsize=9, fontcolor="{QUIET}"'
            styles.append(f'label=" {link.edges:,}", {font}')
        _, source = self._boxes[view.graph, link.source]
        target, _ = self._boxes[view.graph, link.target]
        style = f" [{', '.join(styles)}]" if styles else ""
        self.lines.append(f"    {source} -> {target}{style};")

    def _frame(self, view: View, drawn: Sequence[Run], around: int | None, pad: str) -> None:
        """The runs in the frame of a fold, and the frames inside it."""
        for run in drawn:
            if run.around == around:
                self._run(view, run, pad)
        framed = {run.around for run in drawn if run.around is not None}
        for number, fold in enumerate(view.folds):
            if number in framed and fold.parent == around:
                self._open(self._heading(fold), pad)
                self._frame(view, drawn, number, f"{pad}  ")
                self.lines.append(f"{pad}}}")

    def _open(self, heading: str, pad: str) -> None:
        self._clusters += 1
        self.lines += [
            f"{pad}subgraph cluster_m{self._clusters} {{",
            f"{pad}  label=<{heading}>; labeljust=l; fontsize=10; "
            f'fontcolor="{QUIET}"; style="rounded,filled"; penwidth=0.8; margin=9; '
            f'color="#ccd4dd"; fillcolor="{PAPER}";',
        ]

    def _run(self, view: View, run: Run, pad: str) -> None:
        """One box, or several beside each other where it is longer than a screen is high."""
        graph = self.capture.graphs[view.graph]
        if view.items[run.items[0]].is_point:
            self._box(view, run.items[0], pad)
            return
        around = 0 if run.around is None else len(view.folds_above(run.around)) + 1
        folds = [view.folds_of(view.items[position])[around:] for position in run.items]
        rows = [self.labels.row(graph, view, view.items[position]) for position in run.items]
        marks = {
            link.target: "… " if link.hidden else "‖ "
            for link in view.links
            if link.carried is None and (link.hidden or link.programmatic)
        }
        for at, position in enumerate(run.items[1:], 1):
            where, op, *rest = rows[at]
            rows[at] = where, marks.get(position, "") + op, *rest
        used = [at for at in range(len(rows[0])) if any(row[at] for row in rows)]
        columns = -(-len(rows) // COLUMN_ROWS)
        size = -(-len(rows) // columns)
        names: list[str] = []
        for start in range(0, len(rows), size):
            names.append(_name(view, run.items[start]))
            lines: list[str] = []
            module, opened = "", tuple[int, ...]()
            for at in range(start, min(start + size, len(rows))):
                for fold in folds[at]:
                    if fold not in opened:
                        more = at == start > 0 and fold in folds[at - 1]
                        lines.append(self._band(view.folds[fold], len(used), more=more))
                        module = ""
                opened = folds[at]
                fill, _ = self._shade(graph, view.items[run.items[at]])
                cells = [
                    _cell(rows[at][cell], fill if cell == 1 else None, strong=cell == 1)
                    if cell or rows[at][0] != module
                    else "<TD></TD>"
                    for cell in used
                ]
                module = rows[at][0]
                bar = f' BGCOLOR="{EDGE}"' if opened else ""
                lines.append(f'<TR><TD{bar} WIDTH="3"></TD>{"".join(cells)}</TR>')
            self.lines.append(
                f'{pad}{names[-1]} [shape=plain, style="", tooltip=" ", label=<<TABLE BORDER="1" '
                f'COLOR="{OTHER[1]}" BGCOLOR="{PAPER}" CELLBORDER="0" CELLSPACING="1" '
                f'CELLPADDING="1">{"".join(lines)}</TABLE>>];'
            )
        if len(names) > 1:
            self.lines.append(f"{pad}{{rank=same; {' -> '.join(names)};}}")
        for position in run.items:
            self._boxes[view.graph, position] = names[0], names[-1]

    def _band(self, fold: Fold, cells: int, *, more: bool) -> str:
        """The row above those of a fold."""
        words = self._heading(fold, more=more)
        return (
            f'<TR><TD BGCOLOR="{EDGE}" WIDTH="3"></TD><TD COLSPAN="{cells}" ALIGN="LEFT" '
            f'BGCOLOR="{BAND}">{words}</TD></TR>'
        )

    def _heading(self, fold: Fold, *, more: bool = False) -> str:
        name = html_text(cut(names_text(fold.modules, 3) or "loop", 60))
        words = [word for word in (fold.type, *fold.differs) if word] + ["continued"] * more
        return f"<B>{name} × {fold.times}</B>   {html_text(', '.join(words))}"

    def _visit(self, view: View, visit: Visit, pad: str) -> None:
        for position in visit.own:
            self._box(view, position, pad)
        for inner in visit.inside.values():
            if not inner.inside and len(inner.own) == 1:
                # A frame around one box is clutter: the box itself names the module.
                self._box(view, inner.own[0], pad, inside=inner)
                continue
            self._open(html_text(_module_text(inner)), pad)
            self._visit(view, inner, f"{pad}  ")
            self.lines.append(f"{pad}}}")

    def _box(self, view: View, position: int, pad: str, inside: Visit | None = None) -> None:
        item = view.items[position]
        name = _name(view, position)
        self._boxes[view.graph, position] = name, name
        if item.is_point:
            self.lines.append(
                f'{pad}{name} [shape=point, width=0.07, color="{EDGE}", '
                'tooltip="paths through nodes that are not shown meet here"];'
            )
            return
        graph = self.capture.graphs[view.graph]
        label = self.labels.of(graph.nodes[item.members[0]])
        if inside is not None and (inside.path,) != label.title:
            label = replace(label, rows=(_module_text(inside), *label.rows))
        fill, line = self._shade(graph, item)
        self.lines.append(
            f'{pad}{name} [label=<{_rows(label)}>, fillcolor="{fill}", color="{line}", '
            f"tooltip={tooltip(*label.tooltip)}];"
        )

    def _bodies(self) -> None:
        """From a child or conditional node to the graph that it runs."""
        names = {
            (view.graph, member): self._boxes[view.graph, position][1]
            for view in self.views
            for position, item in enumerate(view.items)
            for member in item.members
        }
        for view in self.views:
            parent = self.capture.graphs[view.graph].parent
            if parent is not None and parent in names and view.items:
                self.lines.append(
                    f"  {names[parent]} -> {self._boxes[view.graph, 0][0]} "
                    f"[lhead=cluster_graph{view.graph}, style=dashed, arrowhead=open, "
                    f'color="{TYPES["conditional"][1]}", penwidth=1.3, '
                    'tooltip="runs this graph"];'
                )

    def _wrap(self) -> None:
        """Graphs below each other where more would be beside each other than a screen is wide."""
        whole = [view for view in self.views if self.capture.graphs[view.graph].parent is None]
        for above, below in zip(whole, whole[GRAPHS_BESIDE:], strict=False):
            if above.rows and above.items and below.items:
                _, last = self._boxes[above.graph, len(above.items) - 1]
                first, _ = self._boxes[below.graph, 0]
                self.lines.append(f"  {last} -> {first} [style=invis];")

    def _time(self, graph: Graph, item: Item) -> int:
        return sum(graph.nodes[member].duration_ns or 0 for member in item.members)

    def _shade(self, graph: Graph, item: Item) -> Shade:
        if self.color == "time":
            return self._heat(self._time(graph, item))
        node = graph.nodes[item.members[0]]
        if self.color == "type":
            types = {graph.nodes[member].type for member in item.members}
            if len(types) > 1:
                return self.legend.setdefault("several types", MIXED)
            return self.legend.setdefault(node.type, TYPES.get(node.type, OTHER))
        if self.color == "stream":
            streams = {graph.nodes[member].stream for member in item.members}
            index = node.stream if len(streams) == 1 else None
            key = "no single stream" if index is None else self.capture.streams[index].name
        else:
            module = module_of(graph, item, self.labels.places)
            key = module_at_depth(module, max(min(self.depth, 2), 1))
        if key not in self.legend and len(self.legend) >= len(SOFT):
            return self.legend.setdefault("others", OTHER)
        return self.legend.setdefault(key, SOFT[len(self.legend) % len(SOFT)])

    def _heat(self, duration: int) -> Shade:
        steps = len(HEAT)
        if not self.legend:
            self.legend = {
                f"from {time_text(self._longest * (step / steps) ** 2)}": shade
                for step, shade in enumerate(HEAT)
            }
        # The square root: otherwise one long kernel makes all others pale.
        share = (duration / self._longest) ** 0.5 if self._longest else 0.0
        return HEAT[min(int(share * steps), steps - 1)]


def _name(view: View, position: int) -> str:
    """``g0_12`` is, or begins with, node 12 of graph 0; points are numbered by position."""
    item = view.items[position]
    return f"g{view.graph}_{f'point{position}' if item.is_point else item.members[0]}"


def _module_text(visit: Visit) -> str:
    """``layers.0 · Block``."""
    return " · ".join(cut(word, 60) for word in (visit.path, visit.type) if word)


def _cell(text: str, fill: str | None, *, strong: bool) -> str:
    shade = f' BGCOLOR="{fill}"' if fill else ""
    shown = html_text(cut(text, WIDE if strong else CELL))
    colored = (
        f"{shown} &#160;"
        if strong
        else f'<FONT POINT-SIZE="9" COLOR="{QUIET}">{shown} &#160;</FONT>'
    )
    return f'<TD ALIGN="LEFT"{shade}>{colored}</TD>'


def _rows(label: Label) -> str:
    title, *more = (html_text(cut(line, WIDE)) for line in label.title)
    rows = [f"<B>{title}</B>", *more]
    rows += [
        f'<FONT POINT-SIZE="9" COLOR="{QUIET}">{html_text(cut(row, ROW))}</FONT>'
        for row in label.rows
    ]
    return "".join(f'{row}<BR ALIGN="LEFT"/>' for row in rows)


def engine() -> Path | None:
    """The layout program: ``dot`` on the PATH, else that of the graphviz-pure package, which is
    installed next to the running Python."""
    beside = shutil.which(PIP_PROGRAM, path=Path(sys.executable).parent)
    program = shutil.which("dot") or beside or shutil.which(PIP_PROGRAM)
    return Path(program) if program else None


def lay_out(text: str, kind: str, *, seconds: float = LAYOUT_SECONDS) -> bytes:
    """Lay the graph out as ``svg``, ``png``, or what else the layout program writes.

    Raises CgtoolError: exit 3 without any layout program, 2 when it fails or takes too long.
    """
    program = engine()
    if program is None:
        raise machine(
            f"no Graphviz to lay out the {kind.upper()}",
            fix="pip install graphviz-pure, or install Graphviz; --dot needs neither",
        )
    # The graphviz package runs the program of this name; its own `pipe` has no time limit.
    dot_command.DOT_BINARY = program
    try:
        result = execute.run_check(
            # Only xdot says how wide each text is.
            [*dot_command.command("dot", kind), *(["-Txdot"] if kind == "svg" else [])],
            input=text.encode(),
            capture_output=True,
            quiet=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise usage(
            f"the layout took more than {seconds:.0f} s",
            fix="draw less: without --expand, with --depth 1 or --select 'module=layers.0.*'",
        ) from None
    except (subprocess.CalledProcessError, execute.ExecutableNotFound, OSError) as error:
        message = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()
        reason = message.splitlines()[0] if message else str(error)
        if "not recognized" in reason:
            raise usage(
                f"{program.name} cannot write {kind.upper()}",
                fix="install Graphviz, whose dot program can (apt install graphviz); or take "
                "--svg, which every browser prints as PDF",
            ) from error
        raise usage(
            f"{program.name} could not lay the graph out: {reason}",
            fix="draw less: --depth 1; or take the text with --dot",
        ) from error
    return _with_widths(result.stdout) if kind == "svg" else result.stdout


def _with_widths(pictures: bytes) -> bytes:
    """The SVG of an SVG followed by the same picture as xdot. Each text becomes as wide as was
    reserved for it: the font that a browser has instead of Helvetica may be wider."""
    svg, end, drawing = pictures.partition(b"</svg>\n")
    # A backslash ends a line that goes on.
    texts = _XDOT_TEXT.findall(drawing.replace(b"\\\n", b""))
    widths = {(float(x), -float(y)): width for x, y, width in texts}

    def fitted(match: re.Match[bytes]) -> bytes:
        width = widths.get((float(match["x"]), float(match["y"])))
        adjusted = b' textLength="%s" lengthAdjust="spacingAndGlyphs"' % width if width else b""
        return match[0] + adjusted

    return _SVG_TEXT.sub(fitted, svg) + end
