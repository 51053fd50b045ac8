"""The line, module and op behind a node, its name and its attributes.

An attribute is a field of the node, of its launch, copy or fill, or of its kernel function. A new
field is one without any change here: its type says its label and where it is shown
(``cgtool.model.schema``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec

from cgtool.analysis.graph.kernel_names import demangle_all, short_kernels
from cgtool.model.capture import Capture, Frame, Graph, Node, Origin
from cgtool.model.schema import Field, fields, reader

_DIGITS = re.compile(r"\d+")
WORK = ("kernel", "memcpy", "memset", "op")
"""Types of nodes that do work on the device: those that tables by module, op and line count."""


class Place(msgspec.Struct, frozen=True):
    """One node's provenance in words."""

    op: str | None = None
    module: str | None = None
    module_type: str | None = None
    frame: Frame | None = None
    """The innermost frame outside torch of the op itself; in backward, of the call that runs
    backward."""
    forward_op: str | None = None
    forward_frame: Frame | None = None
    autograd_node: str | None = None
    annotations: tuple[str, ...] = ()

    @property
    def line(self) -> Frame | None:
        """The line that the work belongs to: in backward, the forward op's."""
        return self.forward_frame or self.frame

    @property
    def short_op(self) -> str | None:
        """``addmm`` for ``aten::addmm``, ``add`` for ``aten::add.Tensor``."""
        return None if self.op is None else short_op(self.op)

    def module_at(self, depth: int | None = None) -> str:
        """The module as tables name it, to ``depth`` names of its path, or whole; outside every
        module the range around the op, which says more: the optimizer's or the user's."""
        if self.module is None and self.annotations:
            return f"({self.annotations[0]})"
        return module_at_depth(self.module, depth)


def short_op(op: str) -> str:
    name = op.partition("::")[2] or op
    return name.partition(".")[0]


class Places:
    """Looks up nodes of one capture; each origin is resolved once."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._known: dict[int | None, Place] = {None: Place()}

    def of(self, node: Node) -> Place:
        return self.of_origin(node.origin)

    def of_origin(self, index: int | None) -> Place:
        if index not in self._known:
            assert index is not None
            origin = self._capture.origins[index]
            forward = None if origin.forward is None else self._capture.origins[origin.forward]
            self._known[index] = Place(
                origin.op,
                origin.module,
                origin.module_type,
                self._frame(origin),
                forward.op if forward else None,
                self._frame(forward) if forward else None,
                origin.autograd_node,
                origin.annotations,
            )
        return self._known[index]

    def _frame(self, origin: Origin) -> Frame | None:
        return self._capture.frames[origin.frames[0]] if origin.frames else None


def frames_of(capture: Capture, origin: int | None) -> tuple[Frame, ...]:
    """The Python call chain of an origin, innermost first; none for None."""
    if origin is None:
        return ()
    return tuple(capture.frames[index] for index in capture.origins[origin].frames)


def file_line(frame: Frame | None) -> str:
    """``model.py:42``: the file's own name and the line."""
    return "" if frame is None else f"{frame.file.rpartition('/')[2]}:{frame.line}"


def module_at_depth(module: str | None, depth: int | None = None) -> str:
    """The first ``depth`` names of a module path, or all of it; the root module is ``(root)``."""
    if module is None:
        return "(no module)"
    return ".".join(module.split(".")[:depth]) if module else "(root)"


def path_pattern(paths: Sequence[str]) -> str:
    """``layers.*.mlp`` for ``layers.0.mlp`` and ``layers.1.mlp``: paths with as many names each,
    which differ in numbers only."""
    names = zip(*(path.split(".") for path in paths), strict=True)
    return ".".join(each[0] if len(set(each)) == 1 else _DIGITS.sub("*", each[0]) for each in names)


def part_of(capture: Capture, graph: Graph) -> str | None:
    """Which of several callables the graph belongs to; None if there is only one."""
    names = capture.entry.callables
    return names[graph.callable] if len(names) > 1 and graph.callable < len(names) else None


class Attribute(NamedTuple):
    """One fact about a node."""

    field: Field
    value: Any


@cache
def _attribute_reader(
    kind: type[msgspec.Struct],
) -> tuple[list[Field], Callable[[Any], tuple[Any, ...]]]:
    described = [field for field in fields(kind) if field.is_attribute]
    return described, reader(described)


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
        self._known: dict[tuple[type, tuple[Any, ...]], tuple[Attribute, ...]] = {}
        self._of_function = list(map(self._of_struct, capture.functions))

    def title(self, node: Node) -> str:
        """The name of the node: its kernel, ``memcpy dtod``, the op, or the type."""
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
        for part in (node.kernel, node.copy, node.fill):
            if part is not None:
                attributes += self._of_struct(part)
        if node.kernel is not None:
            attributes += self._of_function[node.kernel.function]
        return attributes + self._of_struct(node)

    def _of_struct(self, struct: msgspec.Struct) -> tuple[Attribute, ...]:
        """Computed once for equal structs."""
        described, read = _attribute_reader(type(struct))
        values = read(struct)
        key = (type(struct), values)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = tuple(
                Attribute(field, value)
                for field, value in zip(described, values, strict=True)
                if value is not None and value != field.default
            )
        return known

    def arguments(self, node: Node) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """The memory that a kernel's arguments point into: indices of allocations, names of
        tensors."""
        pointers = node.kernel.pointers if node.kernel is not None else ()
        allocations = [pointer.allocation for pointer in pointers if pointer.allocation is not None]
        tensors = self.capture.memory.tensors
        names = [tensors[pointer.tensor].name for pointer in pointers if pointer.tensor is not None]
        return tuple(dict.fromkeys(allocations)), tuple(dict.fromkeys(names))
