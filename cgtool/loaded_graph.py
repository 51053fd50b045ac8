"""The graphs of a capture as objects: their nodes as rows, and what a test asserts of them.
docs/api.md shows how to use it.

A relation between two selections is a ``Relation``: false with a text that names the nodes, which
pytest shows where an ``assert`` fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args, get_origin, overload

import msgspec

from cgtool.analysis.graph.places import NodeDescriber
from cgtool.analysis.graph.reach import Reach
from cgtool.analysis.graph.select import parse, selected
from cgtool.analysis.graph.topology import topology
from cgtool.analysis.units import count_text, total_of
from cgtool.model.capture import Capture, Frame, Graph, Node
from cgtool.model.failure import machine
from cgtool.render.text import visible

if TYPE_CHECKING:
    import pandas

__tracebackhide__ = True
"""pytest shows the line of the test, not ours."""

Row = TypeVar("Row", bound=msgspec.Struct)
SHOWN = 20
"""Rows of a table in a notebook."""
_CUT, _LINE = 230, 215
"""Characters of a text that pytest shows whole, and those that are filled with nodes."""
_NAME = 40
"""Characters of a kernel's name there."""


class NodeRow(msgspec.Struct, frozen=True):
    """One node of a graph."""

    graph: str
    """The name of the graph."""
    id: int
    """Its number in the graph, in the order of creation; what ``LoadedGraph.edges`` has."""
    type: str
    """``kernel``, ``memcpy``, ``memset``, ``empty``, ..."""
    name: str
    """Short name of the kernel, ``memcpy dtod``, ..."""
    kernel: str | None
    """Demangled name of the kernel; None for other nodes."""
    op: str | None
    """The op that launched it: ``aten::addmm``."""
    module: str | None
    """Path of the module that ran the op: ``layers.0.mlp``; ``""`` is the root module."""
    file: str | None
    line: int | None
    """The line of the user's code that ran the op, and the function around it."""
    function: str | None
    forward_op: str | None
    """In backward: the op whose gradient this is part of, and its line."""
    forward_file: str | None
    forward_line: int | None
    stream: int | None
    """Index into ``capture.streams``: the stream that it was captured on."""
    grid: tuple[int, int, int] | None
    """Blocks of the launch, x, y and z; None for other nodes than kernels."""
    block: tuple[int, int, int] | None
    """Threads of a block, x, y and z."""
    start_ns: int | None
    """From the start of the graph's first node; None if it was not measured."""
    duration_ns: int | None
    """On the GPU, in one replay; None if it was not measured."""

    def __repr__(self) -> str:
        place = f" {Path(self.file).name}:{self.line}" if self.file else ""
        return f"<node {self.id} of {self.graph}: {self.op or self.type} {self.name}{place}>"


class EdgeRow(msgspec.Struct, frozen=True):
    """The second node waits for the first."""

    source: NodeRow
    target: NodeRow
    kind: str
    """``full``, ``programmatic`` (the two may overlap), or ``launch order``."""


class Rows(Sequence[Row], Generic[Row]):
    """Rows of one kind: a sequence, and a table."""

    def __init__(self, rows: Sequence[Row], kind: type[Row], noun: str) -> None:
        self._rows, self._kind, self._noun = rows, kind, noun

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    @overload
    def __getitem__(self, at: int) -> Row: ...
    @overload
    def __getitem__(self, at: slice) -> Rows[Row]: ...
    def __getitem__(self, at: int | slice) -> Row | Rows[Row]:
        if isinstance(at, slice):
            return Rows(self._rows[at], self._kind, self._noun)
        return self._rows[at]

    def __repr__(self) -> str:
        return f"<{count_text(len(self), self._noun)}>"

    def to_dicts(self) -> list[dict[str, Any]]:
        """A dictionary for each row."""
        return [msgspec.structs.asdict(row) for row in self._rows]

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame with a column for each field, even if there are no rows. Columns with missing
        values, even in all rows, keep their type: ``Int64`` for whole numbers, ``string`` for text.
        Raises ImportError without pandas."""
        try:
            import pandas
        except ImportError as error:
            error.add_note("fix: pip install pandas; to_dicts() needs nothing")
            raise
        # By the types of the fields: a column without any value has one too, and by way of floats,
        # a start time would lose its last digits.
        columns = {field.name: field.type for field in msgspec.structs.fields(self._kind)}
        return pandas.DataFrame(
            {
                name: pandas.array([getattr(row, name) for row in self._rows], dtype=_dtype(type_))
                for name, type_ in columns.items()
            }
        )

    def _repr_html_(self) -> str:
        rows = self[:SHOWN].to_dicts()
        if not rows:
            return _escaped(repr(self))
        names = [name for name in rows[0] if any(row[name] is not None for row in rows)]
        head = "".join(f"<th>{_escaped(name)}</th>" for name in names)
        body = "".join(
            "<tr>" + "".join(f"<td>{_cell(row[name])}</td>" for name in names) + "</tr>"
            for row in rows
        )
        more = len(self) - len(rows)
        rest = f"<p>{count_text(more, f'more {self._noun}')}</p>" if more > 0 else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"


_DTYPES = {bool: "boolean", int: "Int64", float: "Float64", str: "string"}


def _dtype(hint: Any) -> str:
    """The type of a column of pandas for values of this type, some of which may be missing."""
    while type_args := get_args(hint):  # Annotated, and a union with None
        if get_origin(hint) is tuple:
            break
        hint = next(part for part in type_args if part is not NoneType)
    return _DTYPES.get(hint, "object")


def _cell(value: Any) -> str:
    return "" if value is None else _escaped(str(value))


def _escaped(text: str) -> str:
    return escape(visible(text))


class Relation:
    """Whether a relation between nodes holds: true or false, with the reason as its text."""

    def __init__(self, name: str, problem: str = "", nodes: Sequence[str] = ()) -> None:
        """Without a ``problem`` it holds; else ``nodes`` are those that have it."""
        self._text = f"not {name}: {problem}" if problem else name
        self._holds, self._nodes = not problem, nodes

    def __bool__(self) -> bool:
        return self._holds

    def __repr__(self) -> str:
        return f"<{_listed(self._text, self._nodes)}>"

    def __str__(self) -> str:
        return "\n  ".join((self._text, *self._nodes))


class Selection(Rows[NodeRow]):
    """Some nodes of a graph; false if there are none."""

    def __init__(self, graph: LoadedGraph, places: Sequence[int], terms: str = "") -> None:
        """``places``: as of ``Reach``. ``terms``: how they were selected."""
        super().__init__([graph.rows[place] for place in places], NodeRow, "node")
        self._graph, self._places, self._terms = graph, places, terms

    def __call__(self, *expressions: str, **fields: str | int) -> Selection:
        """The nodes that match all of these, which are terms of ``cgtool dump --select``:
        ``("module=layers.0,type!=memset")``, ``(line="model.py:40-60", stream=1)``. Raises
        CgtoolError for a field that does not exist."""
        terms = (*expressions, *(f"{name}={value}" for name, value in fields.items()))
        kept = self._graph.matching(terms)
        return self._kept([kept[place] for place in self._places], *terms)

    def where(self, holds: Callable[[NodeRow], bool], terms: str = "a function") -> Selection:
        """The nodes for which a function returns true. ``terms``: its name in messages."""
        return self._kept(list(map(holds, self)), terms)

    def _kept(self, kept: Sequence[bool], *terms: str) -> Selection:
        places = [place for place, keep in zip(self._places, kept, strict=True) if keep]
        return Selection(self._graph, places, ",".join(filter(None, (self._terms, *terms))))

    @overload
    def __getitem__(self, at: int) -> NodeRow: ...
    @overload
    def __getitem__(self, at: slice) -> Selection: ...
    def __getitem__(self, at: int | slice) -> NodeRow | Selection:
        if isinstance(at, slice):
            return Selection(self._graph, self._places[at], self._terms)
        return self._rows[at]

    def __repr__(self) -> str:
        if not self._terms:
            return super().__repr__()
        head = f"{count_text(len(self), 'node')}{self._with}"
        return f"<{_listed(head, list(map(self._graph.text, self._places)))}>"

    @property
    def count(self) -> int:  # type: ignore[override]
        """How many nodes there are."""
        return len(self)

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that they were captured on, as far as that is known: ``capture stream``,
        ``stream 1``."""
        known = {row.stream for row in self if row.stream is not None}
        return tuple(self._graph.stream_name(each) for each in sorted(known))

    def before(self, other: Selection, *, every: bool = False) -> Relation:
        """Whether each node of ``other`` runs after at least one of these, by a path of edges; with
        ``every``, after all of these. False if there are none here or there."""
        return self._ordered("before", self, other, every)

    def after(self, other: Selection, *, every: bool = False) -> Relation:
        """Whether each of these runs after at least one node of ``other``, or after all."""
        return self._ordered("after", other, self, every)

    def _ordered(self, name: str, earlier: Selection, later: Selection, every: bool) -> Relation:
        answers = self._graph.reach.waits(later._places, earlier._places, every=every)
        from_ = f"no path from {'every' if every else 'any'} node{earlier._with} to "
        return later._relation(name, earlier, answers, from_)

    def parallel_to(self, other: Selection) -> Relation:
        """Whether each of these can run at the same time as at least one node of ``other``: there
        is no path from one to the other. False if there are none here or there."""
        answers = self._graph.reach.may_overlap(self._places, other._places)
        return self._relation(
            "parallel", other, answers, f"a path between every node{other._with} and "
        )

    def in_sequence(self) -> Relation:
        """Whether they run one after the other: none can run at the same time as another."""
        gaps = self._graph.reach.gaps(self._places)
        pairs = [" and ".join(map(self._graph.text, pair)) for pair in gaps]
        problem = "" if self else self._graph.absent(self)
        if gaps:
            problem = f"no path between {count_text(len(gaps), 'pair')} of nodes{self._with}"
        return Relation("in sequence", problem, pairs)

    def on_stream(self, stream: str | int) -> Relation:
        """Whether all were captured on this stream: its name or number."""
        kept = self._graph.matching((f"stream={stream}",))
        answers = [kept[place] for place in self._places]
        return self._relation(f"on stream {stream}", self, answers, "")

    def edges_to(self, other: Selection) -> Rows[EdgeRow]:
        """The edges that lead from one of these straight to a node of ``other``."""
        rows, sources, targets = self._graph.rows, set(self._places), set(other._places)
        edges = [
            EdgeRow(rows[edge.source], rows[edge.target], edge.kind)
            for edge in self._graph.reach.edges
            if edge.source in sources and edge.target in targets
        ]
        return Rows(edges, EdgeRow, "edge")

    def _relation(
        self, name: str, other: Selection, answers: Sequence[bool], problem: str
    ) -> Relation:
        """``answers``: of each of these nodes. ``problem``: what those have that say no."""
        for selection in (self, other):
            if not selection:
                return Relation(name, self._graph.absent(selection))
        failed = [place for place, answer in zip(self._places, answers, strict=True) if not answer]
        if not failed:
            return Relation(name)
        problem += f"{len(failed)} of {count_text(len(self), 'node')}{self._with}"
        return Relation(name, problem, list(map(self._graph.text, failed)))

    @property
    def _with(self) -> str:
        return f" with {self._terms}" if self._terms else ""


def _listed(head: str, items: Sequence[str]) -> str:
    """As many of the items as fit."""
    text = head
    for number, item in enumerate(items):
        longer = f"{text}{', ' if number else ': '}{item}"
        if len(longer) > _LINE and number:
            text = f"{text}, and {len(items) - number} more"
            break
        text = longer
    return text if len(text) <= _CUT else f"{text[:_CUT]}..."


class LoadedGraph:
    """One graph of a capture."""

    def __init__(
        self,
        capture: Capture,
        index: int,
        nodes: Sequence[NodeRow],
        all_graphs: Sequence[LoadedGraph],
    ) -> None:
        """``nodes``: its own. ``all_graphs``: of the capture, by index, when it is used."""
        self._capture, self._index, self._own, self._all = capture, index, nodes, all_graphs
        self._graph = capture.graphs[index]
        self.name = self._graph.name

    @cached_property
    def nodes(self) -> Selection:
        """Its own nodes, by id. Called, those that match: ``nodes(module="layers.0")``."""
        return Selection(self, range(len(self._own)))

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Pairs of node ids: the second node waits for the first."""
        return tuple((edge.source, edge.target) for edge in self._graph.edges)

    @property
    def nodes_ns(self) -> int | None:
        """GPU time of all nodes, one replay; None if it was not measured."""
        return total_of(row.duration_ns for row in self.nodes)

    @property
    def depth(self) -> int:
        """Nodes on the longest path, without empty ones; a body counts behind its node."""
        return self.reach.depth

    @property
    def bodies(self) -> tuple[LoadedGraph, ...]:
        """The graphs inside its child and conditional nodes, in order."""
        return tuple(self._all[body] for node in self._graph.nodes for body in node.body)

    def topology(self) -> str:
        """Text that is equal for graphs that do the same, in whatever order their nodes were
        created: docs/api.md."""
        text = topology(NodeDescriber(self._capture), self._index)
        return "\n".join(map(visible, text.split("\n")))

    # --- selections: of its nodes and those of its bodies

    def kernels(self, pattern: str = "*", **fields: str | int) -> Selection:
        """The kernels with this name: short, demangled or mangled."""
        named = {"type": "kernel"} if pattern == "*" else {"kernel": pattern}
        return self._launched(named | fields)

    def ops(self, pattern: str = "*", **fields: str | int) -> Selection:
        """The nodes that ops with this name launched: ``mm``, ``aten::add.Tensor``."""
        return self._everything(op=pattern, **fields)

    def copies(self, *, host: bool | None = None, **fields: str | int) -> Selection:
        """The copies; with ``host``, those from or to the host, or only the others."""
        found = self._launched({"type": "memcpy", **fields})
        if host is None:
            return found
        return found.where(lambda row: (row.name in _HOST_COPIES) is host, f"host={host}")

    def memsets(self, **fields: str | int) -> Selection:
        """The memsets."""
        return self._launched({"type": "memset", **fields})

    def _launched(self, fields: Mapping[str, str | int]) -> Selection:
        """Raises CgtoolError for a simulated capture: that it has none would prove nothing."""
        if self._capture.environment.simulated:
            raise machine(
                "the nodes of the simulated device are ops: it has no kernels, copies or memsets",
                fix="ops(...) selects ops on every device",
            )
        return self._everything(**fields)

    @property
    def _everything(self) -> Selection:
        return Selection(self, range(len(self.rows)))

    def __repr__(self) -> str:
        edges = count_text(len(self._graph.edges), "edge")
        return f"<graph {self.name}: {count_text(len(self._own), 'node')}, {edges}>"

    # --- for selections; nodes are known by their place, as of ``Reach``

    @cached_property
    def reach(self) -> Reach:
        """The paths of edges."""
        return Reach(self._capture, self._index)

    @cached_property
    def rows(self) -> Sequence[NodeRow]:
        """All nodes by place."""
        if not any(node.body for node in self._graph.nodes):
            return self._own
        return [row for index in self.reach.graphs for row in self._all[index]._own]

    def matching(self, terms: Sequence[str]) -> list[bool]:
        """By place, whether a node matches. Raises CgtoolError."""
        capture, parsed = self._capture, parse(terms, where="")
        graphs = self.reach.graphs
        return [each for at in graphs for each in selected(capture, capture.graphs[at], parsed)]

    def stream_name(self, stream: int) -> str:
        """``stream 1``."""
        return self._capture.streams[stream].name

    def text(self, place: int) -> str:
        """One node in a few words: its number, op or type, kernel, line and stream."""
        row = self.rows[place]
        words = [str(row.id), row.op or row.type]
        if row.type != "op" and row.name != row.type:
            words.append(row.name if len(row.name) <= _NAME else f"{row.name[:_NAME]}...")
        if row.file:
            words.append(f"{Path(row.file).name}:{row.line}")
        if row.stream is not None and len(self._capture.streams) > 1:
            words.append(f"on {self.stream_name(row.stream)}")
        if row.graph != self.name:
            words.append(f"in {row.graph}")
        return visible(" ".join(words))

    def absent(self, selection: Selection) -> str:
        """Why a selection without nodes proves nothing."""
        names = dict.fromkeys(row.name for row in self.rows)
        return _listed(f"no node{selection._with}; the graph has", list(map(visible, names)))


_HOST_COPIES = ("memcpy htod", "memcpy dtoh", "memcpy htoh")


def node_row(graph: Graph, node: Node, describer: NodeDescriber) -> NodeRow:
    place = describer.places.of(node)
    frame, forward = place.frame or _NOWHERE, place.forward_frame or _NOWHERE
    launch = node.kernel
    return NodeRow(
        graph=graph.name,
        id=node.id,
        type=node.type,
        name=describer.title(node),
        kernel=None if launch is None else describer.full_kernels[launch.function],
        op=place.op,
        module=place.module,
        file=frame.file or None,
        line=frame.line or None,
        function=frame.function or None,
        forward_op=place.forward_op,
        forward_file=forward.file or None,
        forward_line=forward.line or None,
        stream=node.stream,
        grid=None if launch is None else launch.grid,
        block=None if launch is None else launch.block,
        start_ns=node.start_ns,
        duration_ns=node.duration_ns,
    )


_NOWHERE = Frame("", 0, "")
