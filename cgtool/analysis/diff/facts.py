"""What a node is known by from one capture to the next."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cgtool.analysis.graph.places import Places
from cgtool.model.capture import Capture, Frame, Graph, Node

_UNNAMED = re.compile(r"(\d+)(?=_GLOBAL__N_)")
"""The length of a name, and the name."""


class Fact(NamedTuple):
    """Nothing in here differs from process to process: no id, no address, no handle, no folder.

    Nor is the line part of it, which a comment further up shifts.
    """

    module: str | None
    op: str | None
    function: str | None
    """The Python function that the work belongs to; in backward, of the forward op."""
    autograd_node: str | None
    type: str
    name: str | None
    """Of a kernel its mangled name, of a copy its kind."""
    sizes: tuple[object, ...]
    """As ``size_names`` has it."""
    stream: int | None
    """Index into ``Capture.streams``."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Of one graph: a fact and a line for each node."""

    of: Sequence[Fact]
    lines: Sequence[Frame | None]


_SIZES = {
    "kernel": ("grid", "block", "shared memory"),
    "memcpy": ("bytes",),
    "memset": ("bytes", "value"),
}


def size_names(type_: str) -> tuple[str, ...]:
    """What ``Fact.sizes`` holds for nodes of this type."""
    return _SIZES.get(type_, ("shape",))


class Reader:
    """Makes the facts of one capture; each origin and each function is looked at once."""

    def __init__(self, capture: Capture) -> None:
        self.places = Places(capture)
        self._kernels = [same_in_every_build(function.name) for function in capture.functions]
        self._from: dict[int | None, tuple[str | None, str | None, str | None, str | None]] = {}
        self._lines: dict[int | None, Frame | None] = {}
        for origin in (None, *range(len(capture.origins))):
            place = self.places.of_origin(origin)
            self._lines[origin] = place.line
            function = place.line.function if place.line else None
            self._from[origin] = place.module, place.op, function, place.autograd_node

    def facts(self, graph: Graph) -> Facts:
        """Of every node, in order."""
        return Facts(
            [self._fact(node) for node in graph.nodes],
            [self._lines[node.origin] for node in graph.nodes],
        )

    def _fact(self, node: Node) -> Fact:
        kernel, copy, fill = node.kernel, node.copy, node.fill
        name: str | None = None
        sizes: tuple[object, ...] = (node.shape,)
        if kernel is not None:
            name = self._kernels[kernel.function]
            sizes = (kernel.grid, kernel.block, kernel.dynamic_shared_bytes)
        elif copy is not None:
            name, sizes = copy.kind, (copy.bytes,)
        elif fill is not None:
            sizes = (fill.bytes, fill.value)
        return Fact(*self._from[node.origin], node.type, name, sizes, node.stream)


def same_in_every_build(kernel: str) -> str:
    """The mangled name without what nvcc made up for an unnamed namespace: a hash of the source
    file, which another build of PyTorch has otherwise."""
    kept, at = [], 0
    for found in _UNNAMED.finditer(kernel):
        if found.start() >= at:
            kept += [kernel[at : found.start()], "12_GLOBAL__N_1"]
            # As the length says; no name is longer than a mangled name may be.
            at = found.end() + int(found[1][-5:])
    return "".join([*kept, kernel[at:]])
