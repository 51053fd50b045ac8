"""A capture as DOT that people read: one cluster a graph, modules inside, true edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cgtool.analysis.graph.places import module_at_depth, part_of
from cgtool.analysis.graph.view import Item, View, visits
from cgtool.analysis.units import count_text, time_text
from cgtool.model.capture import Capture, Graph
from cgtool.render import palette
from cgtool.render.labels import ROW, WIDE, Label, Labels
from cgtool.render.text import cut, html_text, tooltip

_FONT = "Helvetica"
"""Graphviz knows its metrics without asking a font library, and writes a fallback into SVG."""
_LEGEND_ROW = 8

Shade = tuple[str, str]
"""Fill and border."""


@dataclass
class _Cluster:
    """A visit to a module, with its own boxes (positions in the view) and visits inside it."""

    path: str
    type: str | None = None
    """Of the module, where one of its own nodes tells it."""
    own: list[int] = field(default_factory=list)
    inside: dict[tuple[str, int], _Cluster] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """``layers.0 · Block``."""
        return " · ".join(cut(word, 60) for word in (self.path, self.type) if word)


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
    module path become nested clusters (0: none); ``note`` is said in the title.
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
        self._longest = max(
            (self._time(capture.graphs[view.graph], item) for view in views for item in view.items),
            default=0,
        )

    def text(self, note: str | None) -> str:
        for view in self.views:
            self._graph(view)
        self._bodies()
        # The title holds the legend, which is known when everything is drawn.
        head = [
            "digraph cgtool {",
            f"  graph [label={self._title(note)}, labelloc=t, labeljust=l, "
            f'fontname="{_FONT}", fontsize=11, fontcolor="{palette.INK}", rankdir=TB, '
            f'nodesep=0.22, ranksep=0.24, compound=true, bgcolor="{palette.PAPER}", pad=0.3];',
            f'  node [shape=box, style="filled,rounded", fontname="{_FONT}", fontsize=10, '
            f'fontcolor="{palette.INK}", penwidth=0.9, margin="0.11,0.06", height=0.3];',
            f'  edge [color="{palette.EDGE}", arrowsize=0.6, penwidth=0.9];',
        ]
        return "\n".join([*head, *self.lines, "}"]) + "\n"

    def _title(self, note: str | None) -> str:
        environment = self.capture.environment
        where = f"{environment.device}, torch {environment.torch}"
        if environment.simulated:
            where = f"simulated device (ops on CPU tensors, no kernels), torch {environment.torch}"
        rows = [
            f'<TR><TD ALIGN="LEFT"><FONT POINT-SIZE="15"><B>'
            f"{html_text(cut(self.capture.entry.spec, 90))}</B></FONT></TD></TR>",
            *(
                f'<TR><TD ALIGN="LEFT"><FONT COLOR="{palette.QUIET}">{html_text(text)}</FONT>'
                "</TD></TR>"
                for text in (where, note, self._links())
                if text
            ),
        ]
        if len(self.legend) > 1:
            shades: dict[Shade, list[str]] = {}
            for name, shade in sorted(self.legend.items(), key=_legend_order):
                shades.setdefault(shade, []).append(name)
            cells = [
                f'<TD BGCOLOR="{fill}" COLOR="{line}" BORDER="1" STYLE="ROUNDED" CELLPADDING="4">'
                f"{html_text(cut(', '.join(names), 40) if len(names) < 4 else 'other types')}</TD>"
                for (fill, line), names in shades.items()
            ]
            lines = [
                "".join(cells[at : at + _LEGEND_ROW]) for at in range(0, len(cells), _LEGEND_ROW)
            ]
            rows.append(
                '<TR><TD ALIGN="LEFT">'
                '<TABLE ALIGN="LEFT" BORDER="0" CELLBORDER="0" CELLSPACING="5">'
                f"{''.join(f'<TR>{line}</TR>' for line in lines)}</TABLE></TD></TR>"
            )
        return f'<<TABLE BORDER="0" CELLSPACING="1" CELLPADDING="1">{"".join(rows)}</TABLE>>'

    def _links(self) -> str:
        """What links that are not plain mean."""
        links = [link for view in self.views for link in view.links]
        words = []
        if any(link.hidden for link in links):
            words.append("dashed grey: through nodes that are not shown")
        if any(link.programmatic for link in links):
            words.append("orange: programmatic, the kernels may overlap")
        if any(self.capture.graphs[view.graph].parent for view in self.views):
            words.append("dashed green: to the graph that the node runs")
        return "; ".join(words)

    def _graph(self, view: View) -> None:
        graph = self.capture.graphs[view.graph]
        shown = sum(len(item.members) for item in view.items)
        part = part_of(self.capture, graph)
        words = [cut(part, 40)] if part else []
        words += [count_text(view.node_count, "node"), count_text(len(graph.edges), "edge")]
        if shown < view.node_count:
            words.append(f"{shown:,} selected")
        self.lines += [
            f"  subgraph cluster_graph{view.graph} {{",
            f"    label=<<B>{html_text(graph.name)}</B>"
            f'<FONT COLOR="{palette.QUIET}">   {html_text(", ".join(words))}</FONT>>; '
            "labeljust=l; fontsize=12; margin=14; penwidth=1.2; "
            'style="rounded,filled"; '
            f'color="{palette.PHASE_LINES.get(graph.phase, palette.OTHER[1])}"; '
            f'fillcolor="{palette.PHASES.get(graph.phase, palette.PAPER)}";',
        ]
        if not view.items:
            text = "nothing selected" if view.node_count else "empty graph"
            self.lines.append(f'    "g{view.graph}" [label="{text}", shape=plaintext, style=""];')
        self._cluster(view, self._tree(view, graph), "    ")
        for link in view.links:
            style = ""
            if link.hidden:
                style = ' [style=dashed, tooltip="through nodes that are not shown"]'
            elif link.programmatic:
                style = ' [color="#c2703d", style=bold, tooltip="programmatic: may overlap"]'
            source, target = _name(view, link.source), _name(view, link.target)
            self.lines.append(f"    {source} -> {target}{style};")
        self.lines.append("  }")

    def _module(self, graph: Graph, item: Item) -> str | None:
        if item.title is not None:
            return item.module
        return self.labels.places.of(graph.nodes[item.members[0]]).module

    def _tree(self, view: View, graph: Graph) -> _Cluster:
        modules = [None if item.is_point else self._module(graph, item) for item in view.items]
        root = _Cluster("")
        for position, path in enumerate(visits(view, modules, self.depth)):
            cluster = root
            members = view.items[position].members
            place = self.labels.places.of(graph.nodes[members[0]]) if path else None
            for visit in path:
                cluster = cluster.inside.setdefault(visit, _Cluster(visit[0]))
                if place is not None and place.module == cluster.path:
                    cluster.type = place.module_type
            cluster.own.append(position)
        return root

    def _cluster(self, view: View, cluster: _Cluster, pad: str) -> None:
        for position in cluster.own:
            self._box(view, position, pad)
        for module in cluster.inside.values():
            # `layers` that holds nothing but `layers.0` is not worth a frame of its own.
            inner = module
            while not inner.own and len(inner.inside) == 1:
                (inner,) = inner.inside.values()
            if not inner.inside and len(inner.own) == 1:
                # A frame around one box is clutter: the box says the module itself.
                self._box(view, inner.own[0], pad, inside=inner)
                continue
            self._clusters += 1
            self.lines += [
                f"{pad}subgraph cluster_m{self._clusters} {{",
                f"{pad}  label=<{html_text(inner.words)}>; labeljust=l; fontsize=10; "
                f'fontcolor="{palette.QUIET}"; style="rounded,filled"; penwidth=0.8; margin=9; '
                f'color="#ccd4dd"; fillcolor="#ffffff";',
            ]
            self._cluster(view, inner, f"{pad}  ")
            self.lines.append(f"{pad}}}")

    def _box(self, view: View, position: int, pad: str, inside: _Cluster | None = None) -> None:
        item = view.items[position]
        name = _name(view, position)
        if item.is_point:
            self.lines.append(
                f'{pad}{name} [shape=point, width=0.07, color="{palette.EDGE}", '
                'tooltip="paths through nodes that are not shown meet here"];'
            )
            return
        graph = self.capture.graphs[view.graph]
        label = self.labels.of(graph, item)
        if inside is not None and inside.path != label.title:
            label = replace(label, rows=(inside.words, *label.rows))
        fill, line = self._shade(graph, item)
        width = ", penwidth=1.6" if item.title is not None else ""
        self.lines.append(
            f'{pad}{name} [label=<{_rows(label)}>, fillcolor="{fill}", color="{line}"{width}, '
            f"tooltip={tooltip(*label.tooltip)}];"
        )

    def _bodies(self) -> None:
        """From a child or conditional node to the graph that it runs."""
        place = {
            (view.graph, member): _name(view, position)
            for view in self.views
            for position, item in enumerate(view.items)
            for member in item.members
        }
        for view in self.views:
            parent = self.capture.graphs[view.graph].parent
            if parent is not None and parent in place and view.items:
                self.lines.append(
                    f"  {place[parent]} -> {_name(view, 0)} "
                    f"[lhead=cluster_graph{view.graph}, style=dashed, arrowhead=open, "
                    f'color="{palette.TYPES["conditional"][1]}", penwidth=1.3, '
                    'tooltip="runs this graph"];'
                )

    def _time(self, graph: Graph, item: Item) -> int:
        return sum(graph.nodes[member].duration_ns or 0 for member in item.members)

    def _shade(self, graph: Graph, item: Item) -> Shade:
        if self.color == "time":
            return self._heat(self._time(graph, item))
        node = graph.nodes[item.members[0]]
        if self.color == "type":
            types = {graph.nodes[member].type for member in item.members}
            if len(types) > 1:
                return self.legend.setdefault("several types", palette.MIXED)
            return self.legend.setdefault(node.type, palette.TYPES.get(node.type, palette.OTHER))
        if self.color == "stream":
            streams = {graph.nodes[member].stream for member in item.members}
            index = node.stream if len(streams) == 1 else None
            key = "no single stream" if index is None else self.capture.streams[index].name
        else:
            module = self._module(graph, item)
            key = module_at_depth(module, max(min(self.depth, 2), 1))
        if key not in self.legend and len(self.legend) >= len(palette.SOFT):
            return self.legend.setdefault("others", palette.OTHER)
        return self.legend.setdefault(key, palette.SOFT[len(self.legend) % len(palette.SOFT)])

    def _heat(self, duration: int) -> Shade:
        steps = len(palette.HEAT)
        if not self.legend:
            for step, shade in enumerate(palette.HEAT):
                least = time_text(self._longest * (step / steps) ** 2)
                self.legend[f"from {least}"] = shade
        # By the square root: a picture in which one long kernel makes all others pale says little.
        share = (duration / self._longest) ** 0.5 if self._longest else 0.0
        return palette.HEAT[min(int(share * steps), steps - 1)]


def _name(view: View, position: int) -> str:
    """``g0_12`` is node 12 of graph 0; groups and points are numbered by position."""
    item = view.items[position]
    if item.is_point:
        return f"g{view.graph}_point{position}"
    if item.title is not None:
        return f"g{view.graph}_group{position}"
    return f"g{view.graph}_{item.members[0]}"


def _legend_order(entry: tuple[str, Shade]) -> int:
    """Types as the palette lists them; all else in order of appearance, as sorting is stable."""
    known = list(palette.TYPES)
    return known.index(entry[0]) if entry[0] in known else len(known)


def _rows(label: Label) -> str:
    rows = [f"<B>{html_text(cut(label.title, WIDE))}</B>"]
    if label.second:
        rows.append(html_text(cut(label.second, WIDE)))
    rows += [
        f'<FONT POINT-SIZE="9" COLOR="{palette.QUIET}">{html_text(cut(row, ROW))}</FONT>'
        for row in label.rows
    ]
    return "".join(f'{row}<BR ALIGN="LEFT"/>' for row in rows)
