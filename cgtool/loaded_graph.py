"""The graphs of a capture as objects: their nodes as rows, and what a test asserts of them.
docs/api.md shows how to use it.

A relation between two selections is a ``Relation``: false with a text that names the nodes, which
pytest shows where an ``assert`` fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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

    def __init__(self, graph: LoadedGraph, rows: Sequence[NodeRow], terms: str = "") -> None:
        """``terms``: how they were selected."""
        super().__init__(rows, NodeRow, "node")
        self._graph, self._terms = graph, terms
        self._ids = [row.id for row in rows]
        self._with = f" with {terms}" if terms else ""

    def __call__(self, *expressions: str, **fields: str | int) -> Selection:
        """The nodes that match all of these, which are terms of ``cgtool dump --select``:
        ``("module=layers.0,type!=memset")``, ``(line="model.py:40-60", stream=1)``. Raises
        CgtoolError for a field that does not exist."""
        terms = (*expressions, *(f"{name}={value}" for name, value in fields.items()))
        kept = self._graph.matching(terms)
        return self.where(lambda row: kept[row.id], ",".join(terms))

    def where(self, holds: Callable[[NodeRow], bool], terms: str = "a function") -> Selection:
        """The nodes for which a function returns true. ``terms`` is its name in messages."""
        terms = ",".join(filter(None, (self._terms, terms)))
        return Selection(self._graph, list(filter(holds, self)), terms)

    @overload
    def __getitem__(self, at: int) -> NodeRow: ...
    @overload
    def __getitem__(self, at: slice) -> Selection: ...
    def __getitem__(self, at: int | slice) -> NodeRow | Selection:
        if isinstance(at, slice):
            return Selection(self._graph, self._rows[at], self._terms)
        return self._rows[at]

    def __repr__(self) -> str:
        if not self._terms:
            return super().__repr__()
        head = f"{count_text(len(self), 'node')}{self._with}"
        return f"<{_listed(head, list(map(self._graph.text, self._ids)))}>"

    @property
    def count(self) -> int:  # type: ignore[override]
        """How many nodes there are."""
        return len(self)

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that they were captured on, as far as that is known: ``capture stream``,
        ``stream 1``."""
        known = {row.stream for row in self if row.stream is not None}
        return tuple(map(self._graph.stream_name, sorted(known)))

    def before(self, other: Selection) -> Relation:
        """Whether each node of ``other`` runs after at least one of these, by a path of edges.
        False if there are none here or there."""
        answers = self._graph.reach.waits(other._ids, self._ids)
        problem = f"no path from any node{self._with} to "
        return other._relation("before", self, answers, problem)

    def after(self, other: Selection) -> Relation:
        """Whether each of these runs after at least one node of ``other``."""
        answers = self._graph.reach.waits(self._ids, other._ids)
        return self._relation("after", other, answers, f"no path from any node{other._with} to ")

    def parallel_to(self, other: Selection) -> Relation:
        """Whether each of these can run at the same time as at least one node of ``other``: there
        is no path from one to the other. False if there are none here or there."""
        answers = self._graph.reach.may_overlap(self._ids, other._ids)
        problem = f"a path between every node{other._with} and "
        return self._relation("parallel", other, answers, problem)

    def edges_to(self, other: Selection) -> Rows[EdgeRow]:
        """The edges that lead from one of these straight to a node of ``other``."""
        sources, targets = ({row.id: row for row in nodes} for nodes in (self, other))
        edges = [
            EdgeRow(sources[edge.source], targets[edge.target], edge.kind)
            for edge in self._graph.graph.edges
            if edge.source in sources and edge.target in targets
        ]
        return Rows(edges, EdgeRow, "edge")

    def _relation(
        self, name: str, other: Selection, answers: Sequence[bool], problem: str
    ) -> Relation:
        """``answers``: of each of these nodes. ``problem``: what those have that say no."""
        for empty in (each for each in (self, other) if not each):
            names = list(dict.fromkeys(visible(row.name) for row in self._graph.nodes))
            return Relation(name, _listed(f"no node{empty._with}; the graph has", names))
        failed = [node for node, answer in zip(self._ids, answers, strict=True) if not answer]
        if not failed:
            return Relation(name)
        problem += f"{len(failed)} of {count_text(len(self), 'node')}{self._with}"
        return Relation(name, problem, list(map(self._graph.text, failed)))


def visible_lines(text: str) -> str:
    """Text of several lines without other control characters."""
    return "\n".join(map(visible, text.split("\n")))


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
        self, capture: Capture, index: int, rows: Sequence[NodeRow], graphs: Sequence[LoadedGraph]
    ) -> None:
        """``rows``: its nodes. ``graphs``: all of the capture, by the time that it is used."""
        self._capture, self._index, self._graphs = capture, index, graphs
        self.graph = capture.graphs[index]
        """Everything in the file: ``cgtool.model.capture.Graph``."""
        self.name = self.graph.name
        self.nodes = Selection(self, rows)
        """All its nodes, by id. Called, those that match: ``nodes(module="layers.0", stream=1)``.
        """

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Pairs of node ids: the second node waits for the first."""
        return tuple((edge.source, edge.target) for edge in self.graph.edges)

    @property
    def nodes_ns(self) -> int | None:
        """GPU time of all nodes, one replay; None if it was not measured."""
        return total_of(row.duration_ns for row in self.nodes)

    @cached_property
    def reach(self) -> Reach:
        """Its paths of edges."""
        return Reach(self.graph)

    @property
    def depth(self) -> int:
        """Nodes on the longest path, without empty ones."""
        return self.reach.depth

    @property
    def bodies(self) -> tuple[LoadedGraph, ...]:
        """The graphs inside its child and conditional nodes, in order."""
        return tuple(self._graphs[body] for node in self.graph.nodes for body in node.body)

    def kernels(self, pattern: str = "*", **fields: str | int) -> Selection:
        """The kernels with this name: short, demangled or mangled."""
        named = {"type": "kernel"} if pattern == "*" else {"kernel": pattern}
        return self.nodes(**named, **fields)

    def ops(self, pattern: str = "*", **fields: str | int) -> Selection:
        """The nodes that ops with this name launched: ``mm``, ``aten::add.Tensor``."""
        return self.nodes(op=pattern, **fields)

    def copies(self, *, host: bool | None = None, **fields: str | int) -> Selection:
        """The copies; with ``host``, those from or to the host, or only the others."""
        copies = self.nodes(type="memcpy", **fields)
        if host is None:
            return copies
        return copies.where(lambda row: (row.name in _HOST_COPIES) is host, f"host={host}")

    def memsets(self, **fields: str | int) -> Selection:
        """The memsets."""
        return self.nodes(type="memset", **fields)

    def topology(self) -> str:
        """Text that is equal for graphs that do the same, in whatever order their nodes were
        created: docs/api.md."""
        return visible_lines(topology(NodeDescriber(self._capture), self._index))

    def matching(self, terms: Sequence[str]) -> list[bool]:
        """By id, whether a node matches. Raises CgtoolError, for kernels, copies and memsets of a
        simulated capture too: that it has none would prove nothing."""
        selection = parse(terms, where="")
        launches = {each for term in selection if term.field == "type" for each in term.patterns}
        launches |= {"kernel" for term in selection if term.field == "kernel"}
        if self._capture.environment.simulated and launches & {"kernel", "memcpy", "memset"}:
            raise machine(
                "the nodes of the simulated device are ops: it has no kernels, copies or memsets",
                fix="ops(...) selects ops on every device",
            )
        return selected(self._capture, self.graph, selection)

    def stream_name(self, stream: int) -> str:
        """``stream 1``, by its number."""
        return self._capture.streams[stream].name

    def text(self, node: int) -> str:
        """A node in a few words: its number, op or type, kernel, line and stream."""
        row = self.nodes[node]
        words = [str(row.id), row.op or row.type]
        if row.type != "op" and row.name != row.type:
            words.append(row.name if len(row.name) <= _NAME else f"{row.name[:_NAME]}...")
        if row.file:
            words.append(f"{Path(row.file).name}:{row.line}")
        if row.stream is not None and len(self._capture.streams) > 1:
            words.append(f"on {self.stream_name(row.stream)}")
        return visible(" ".join(words))

    def __repr__(self) -> str:
        edges = count_text(len(self.graph.edges), "edge")
        return f"<graph {self.name}: {count_text(len(self.nodes), 'node')}, {edges}>"


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
