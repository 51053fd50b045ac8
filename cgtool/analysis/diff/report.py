"""What ``cgtool diff`` found, as data.

``a`` and ``b`` stand for the two captures everywhere; None means that this side has no such thing.
"""

from __future__ import annotations

import msgspec

REMOVED, ADDED, CHANGED, MOVED = "removed", "added", "changed", "moved"


class Side(msgspec.Struct, frozen=True):
    """One of the two captures."""

    name: str
    """As the user gave it: a file or an ENTRY."""
    spec: str
    device: str
    torch: str
    nodes: int


class Attribute(msgspec.Struct, frozen=True):
    """One thing about a node: of a changed one both values, else that of the side that has it."""

    name: str
    """``kernel``, ``kind``, ``op``, ``stream``, or a field that is ``COMPARED``: ``grid``,
    ``dynamic shared bytes``."""
    a: str | None
    b: str | None


class ChangeRow(msgspec.Struct, frozen=True):
    """Nodes of one op at one line that changed in the same way."""

    graph: str
    change: str
    """``removed``, ``added``, ``changed`` or ``moved``."""
    nodes: int
    type: str
    op: str | None
    line: str | None
    module: str
    """One module, or a pattern that all of them match (``layers.*.linear``)."""
    attributes: tuple[Attribute, ...]
    """Of the first of these nodes."""
    vary: bool
    """Whether another of these nodes has other values."""
    a: tuple[int, ...]
    """Ids of the nodes."""
    b: tuple[int, ...]
    """Ids of the nodes; of a changed one at the same place as in ``a``."""


class ModuleRow(msgspec.Struct, frozen=True):
    """Nodes of one module that are not the same."""

    module: str
    a: int
    b: int
    removed: int
    added: int
    changed: int
    moved: int


class GraphRow(msgspec.Struct, frozen=True):
    """One graph."""

    name: str
    phase: str
    change: str
    """``same``, ``changed``, ``removed`` or ``added``."""
    a: int | None
    """Its nodes."""
    b: int | None
    removed: int = 0
    added: int = 0
    changed: int = 0
    moved: int = 0
    edges_removed: int = 0
    """Dependencies between nodes that both sides have."""
    edges_added: int = 0


class EdgeRow(msgspec.Struct, frozen=True):
    """Dependencies between matched nodes that only one side has, of one pair of lines."""

    graph: str
    change: str
    """``removed`` or ``added``."""
    edges: int
    source: str
    """Op, line and module; a pattern of modules where there are several."""
    target: str
    """This one waits for the other."""
    nodes: tuple[tuple[int, int], ...]
    """Ids of source and target, in ``a``."""


def _difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else b - a


def _relative(a: float | None, b: float | None) -> float | None:
    difference = _difference(a, b)
    return difference / a if difference and a else None


class Figure(msgspec.Struct, frozen=True):
    """A number of both sides: bytes, or nanoseconds."""

    of: str
    what: str
    a: float | None
    b: float | None
    judged: bool = False
    """Whether another value is a difference. Times, and what the driver takes for itself, are not
    the same twice."""

    @property
    def difference(self) -> float | None:
        """``b`` less ``a``; None where one side has no number."""
        return _difference(self.a, self.b)

    @property
    def relative(self) -> float | None:
        """The difference as a share of ``a``; None where there is no difference."""
        return _relative(self.a, self.b)


class LineTime(msgspec.Struct, frozen=True):
    """GPU time of the nodes of one op at one line."""

    op: str | None
    line: str | None
    a: int
    """Nanoseconds."""
    b: int

    @property
    def difference(self) -> float | None:
        """``b`` less ``a``; None where one side has no number."""
        return _difference(self.a, self.b)

    @property
    def relative(self) -> float | None:
        """The difference as a share of ``a``; None where there is no difference."""
        return _relative(self.a, self.b)


class Diff(msgspec.Struct, frozen=True):
    """All of it."""

    summary: str
    different: bool
    a: Side
    b: Side
    simulated: bool
    notes: tuple[str, ...]
    graphs: tuple[GraphRow, ...]
    modules: tuple[ModuleRow, ...]
    changes: tuple[ChangeRow, ...]
    """Most nodes first."""
    edges: tuple[EdgeRow, ...]
    memory: tuple[Figure, ...]
    times: tuple[Figure, ...]
    lines: tuple[LineTime, ...]
    """Where the time differs, most first."""
