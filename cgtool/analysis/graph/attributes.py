"""What renderers show of a node: its names, its place, and its attributes.

An attribute is a field of the node, of its launch, copy or fill, or of its kernel function. A new
field is one without any change here: its type says its label and where it is shown
(``cgtool.model.schema``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from cgtool.analysis.graph.kernel_names import demangle_all, short_kernels
from cgtool.analysis.graph.places import Places
from cgtool.model.capture import Capture, Node
from cgtool.model.schema import Field, fields, reader


class Attribute(NamedTuple):
    """One fact about a node."""

    field: Field
    value: Any


class Totals(NamedTuple):
    """Several nodes together."""

    types: Counter[str]
    ops: Counter[str]
    duration_ns: int | None
    """Sum of the nodes that have one."""


class _Attributes:
    """Reads the attributes of structs; those of equal structs are read once."""

    def __init__(self) -> None:
        self._fields: dict[type, tuple[Field, ...]] = {}
        self._read: dict[type, Callable[[Any], tuple[Any, ...]]] = {}
        self._known: dict[tuple[type, tuple[Any, ...]], tuple[Attribute, ...]] = {}

    def of(self, struct: msgspec.Struct) -> tuple[Attribute, ...]:
        """Those that do not have their default."""
        kind = type(struct)
        if kind not in self._read:
            self._fields[kind] = tuple(field for field in fields(kind) if field.is_attribute)
            self._read[kind] = reader(self._fields[kind])
        values = self._read[kind](struct)
        known = self._known.get((kind, values))
        if known is None:
            known = self._known[kind, values] = tuple(
                Attribute(field, value)
                for field, value in zip(self._fields[kind], values, strict=True)
                if value is not None and value != field.default
            )
        return known


class NodeDescriber:
    """Describes the nodes of one capture; each name is looked up once."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.places = Places(capture)
        names = [function.name for function in capture.functions]
        short, full = short_kernels(names), demangle_all(names)
        self.short_kernels = [short[name] for name in names]
        """By function: a short name that no other kernel of this capture has."""
        self.full_kernels = [full[name] for name in names]
        """By function: the demangled name."""
        self._attributes = _Attributes()
        self._of_function = list(map(self._attributes.of, capture.functions))

    def title(self, node: Node) -> str:
        """What the node is called: its kernel, ``memcpy dtod``, the op, or the type."""
        if node.kernel is not None:
            return self.short_kernels[node.kernel.function]
        if node.copy is not None:
            return f"memcpy {node.copy.kind}"
        if node.type == "op":
            return self.places.of(node).short_op or "op"
        return node.type

    def attributes(self, node: Node) -> tuple[Attribute, ...]:
        """All attributes that do not have their default: of its launch, copy or fill first."""
        attributes: tuple[Attribute, ...] = ()
        for name in _PARTS:
            part = getattr(node, name)
            if part is not None:
                attributes += self._attributes.of(part)
        if node.kernel is not None:
            attributes += self._of_function[node.kernel.function]
        return attributes + self._attributes.of(node)

    def arguments(self, node: Node) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """What a kernel's arguments point into: indices of allocations, names of tensors."""
        if node.kernel is None or not node.kernel.pointers:
            return (), ()
        pointers, tensors = node.kernel.pointers, self.capture.memory.tensors
        allocations = [one.allocation for one in pointers if one.allocation is not None]
        names = [tensors[one.tensor].name for one in pointers if one.tensor is not None]
        return tuple(dict.fromkeys(allocations)), tuple(dict.fromkeys(names))

    def totals(self, nodes: Sequence[Node]) -> Totals:
        """Types, ops and time of several nodes."""
        times = [node.duration_ns for node in nodes if node.duration_ns is not None]
        return Totals(
            Counter(node.type for node in nodes),
            Counter(self.places.of(node).short_op or "no op" for node in nodes),
            sum(times) if times else None,
        )


_PARTS = [field.name for field in fields(Node) if field.struct is not None and not field.many]
"""``kernel``, ``copy``, ``fill``."""
