"""The meaning of a capture's fields: unit, range, the list that an index refers to, label.

A field's type says it, with the aliases below: ``duration_ns: DurationNs | None``. msgspec refuses
numbers out of range while it decodes. ``fields`` gives the rest to whoever needs it: the check of
references (``cgtool.model.validation``), JSON, the boxes and tooltips of pictures, the arguments of
a trace (``cgtool.analysis.graph.places``), and docs/capture-format.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Annotated, Any

import msgspec
from msgspec import Meta, inspect

MAX_INT = (1 << 63) - 1
MAX_MEASURE = 1e21
"""Nanoseconds, bytes or operations a second: more than any device has."""


def _int(unit: str | None = None, *, ge: int = 0, le: int = MAX_INT, **extra: Any) -> Meta:
    return Meta(ge=ge, le=le, extra={"unit": unit, **extra})


def _index(target: str) -> Meta:
    return Meta(ge=0, le=MAX_INT, extra={"refers_to": target})


IN_BOX = Meta(extra={"shown": "box"})
"""Shown in the box of a picture, not only in its tooltip."""
UNLISTED = Meta(extra={"shown": "no"})
"""Not listed among a node's attributes: it is shown in another way, or it is the same for every
launch of a function."""
COMPARED = Meta(extra={"compared": True})
"""Part of what a node does: `diff` reports a change of it. Not for what differs from device to
device or from process to process."""

Count = Annotated[int, _int()]
Positive = Annotated[int, _int(ge=1)]
Signed = Annotated[int, _int(ge=-MAX_INT)]
Byte = Annotated[int, _int(le=255)]
_Dim = Annotated[int, _int("dim3", le=(1 << 32) - 1)]
Dim3 = tuple[_Dim, _Dim, _Dim]
"""x, y, z."""
Bytes = Annotated[int, _int("bytes")]
DurationNs = Annotated[int, _int("ns")]
Address = Annotated[int, _int("address", shown="no")]
"""Means nothing outside of the process that captured."""
MeasuredNs = Annotated[float, Meta(ge=0.0, le=MAX_MEASURE, extra={"unit": "ns"})]
"""Measured by events or clocks, so not a whole number."""
MAX_TEXT = 100
"""Characters of a text that the program itself gave."""
Noted = Annotated[float, Meta(ge=-MAX_MEASURE, le=MAX_MEASURE)]
"""A number that the program itself gave."""
NotedText = Annotated[str, Meta(max_length=MAX_TEXT)]
"""The beginning of a text that the program itself gave."""
PerSecond = Annotated[float, Meta(ge=1.0, le=MAX_MEASURE)]

FrameIndex = Annotated[int, _index("Capture.frames")]
OriginIndex = Annotated[int, _index("Capture.origins")]
ArgumentListIndex = Annotated[int, _index("Capture.argument_lists")]
FunctionIndex = Annotated[int, _index("Capture.functions")]
StreamIndex = Annotated[int, _index("Capture.streams")]
GraphIndex = Annotated[int, _index("Capture.graphs")]
PoolIndex = Annotated[int, _index("Memory.pools")]
AllocationIndex = Annotated[int, _index("Memory.allocations")]
TensorIndex = Annotated[int, _index("Memory.tensors")]
ProcessIndex = Annotated[int, _index("Ledger.processes")]
LedgerGraphIndex = Annotated[int, _index("Ledger.graphs")]
LedgerMemoryIndex = Annotated[int, _index("Ledger.memory")]
CollectivesIndex = Annotated[int, _index("Ledger.collectives")]
NodeId = Annotated[int, _index("Graph.nodes")]
"""A node of the same graph."""


@dataclass(frozen=True)
class Field:
    """One field of a struct."""

    name: str
    label: str
    """For people: the title, else the name without its unit."""
    unit: str | None
    """``bytes``, ``ns``, ``address``, ``dim3``; None for a plain number and for everything else."""
    refers_to: str | None
    """The list that it is an index into: ``Capture.origins``."""
    shown: str | None
    """``box``, ``no``, or None: in tooltips and traces."""
    compared: bool
    """Whether `diff` compares it."""
    struct: type[msgspec.Struct] | None
    """The struct that it holds, one or many."""
    many: bool
    """It is a tuple of any length."""
    default: Any
    """``msgspec.NODEFAULT`` where the field is required."""

    @cached_property
    def key(self) -> str:
        """Its name as words, in traces and in `diff`: ``static shared bytes``."""
        return self.name.replace("_", " ")

    @property
    def is_attribute(self) -> bool:
        """Whether it describes what holds it, rather than refer to something else or hold it."""
        return self.refers_to is None and self.struct is None and self.shown != "no"


@lru_cache(maxsize=64)
def fields(struct: type[msgspec.Struct]) -> tuple[Field, ...]:
    """The fields of a struct, in order."""
    return tuple(map(_field, msgspec.structs.fields(struct)))


def reader(described: Sequence[Field]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that reads these fields of a struct, all at once."""
    names = [field.name for field in described]
    if len(names) > 1:
        return attrgetter(*names)
    return lambda struct: tuple(getattr(struct, name) for name in names)


def _field(field: msgspec.structs.FieldInfo) -> Field:
    types = list(flat(inspect.type_info(field.type)))
    extra: dict[str, Any] = {}
    title = None
    for type_ in types:
        if isinstance(type_, inspect.Metadata):
            extra = (type_.extra or {}) | extra
            title = (type_.extra_json_schema or {}).get("title", title)
    unit = extra.get("unit")
    label = field.name.removesuffix(f"_{unit}").replace("_", " ") if title is None else title
    return Field(
        field.name,
        label,
        unit,
        extra.get("refers_to"),
        extra.get("shown"),
        extra.get("compared", False),
        next((type_.cls for type_ in types if isinstance(type_, inspect.StructType)), None),
        any(isinstance(type_, inspect.VarTupleType) for type_ in types),
        field.default,
    )


def flat(type_: inspect.Type) -> Iterator[inspect.Type]:
    """A type and those inside it, without the fields of structs."""
    yield type_
    if isinstance(type_, inspect.Metadata):
        yield from flat(type_.type)
    elif isinstance(type_, inspect.UnionType):
        for member in type_.types:
            yield from flat(member)
    elif isinstance(type_, inspect.VarTupleType):
        yield from flat(type_.item_type)
    elif isinstance(type_, inspect.TupleType):
        for member in type_.item_types:
            yield from flat(member)
