"""The graphs of a capture as JSON with every name resolved, for scripts.

One object: ``schema`` (``cgtool-graphs``), ``schema_version`` (1), ``entry``, ``environment``,
``caveats`` and ``graphs``. Each graph has ``name``, ``phase``, ``node_count`` (shown or not),
``nodes`` and ``edges``; each edge ``[source, target, kind]`` by node id, where kind is
``full``, ``programmatic``, or ``hidden`` for a path through nodes that a selection left out. Where
such paths meet and part again, a node with a negative id and the type ``hidden`` stands for them.
A key that would say nothing is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cgtool.analysis.graph.kernel_names import demangle_all, short_kernels
from cgtool.analysis.graph.places import Places
from cgtool.analysis.graph.view import View
from cgtool.model.capture import (
    Capture,
    Caveat,
    Copy,
    Entry,
    Environment,
    Fill,
    Frame,
    Node,
)
from cgtool.render.json import plain

VERSION = 1


class NodeJson(msgspec.Struct, omit_defaults=True, gc=False):
    """A node. Sizes in bytes, times in nanoseconds."""

    id: int
    type: str
    op: str | None = None
    module: str | None = None
    module_type: str | None = None
    file: str | None = None
    """With ``line`` and ``function``: the innermost Python frame outside torch."""
    line: int | None = None
    function: str | None = None
    forward_op: str | None = None
    forward_file: str | None = None
    """In backward: where the forward op stands that made the autograd node."""
    forward_line: int | None = None
    autograd_node: str | None = None
    annotations: tuple[str, ...] = ()
    stream: str | None = None
    call: int | None = None
    kernel: str | None = None
    """Short name, by which the kernels of this capture can be told apart."""
    kernel_demangled: str | None = None
    kernel_mangled: str | None = None
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    registers: int | None = None
    static_shared_bytes: int | None = None
    dynamic_shared_bytes: int | None = None
    local_bytes: int | None = None
    active_blocks: int | None = None
    allocations: tuple[int, ...] = ()
    """Indices of the captured allocations that the arguments point into."""
    tensors: tuple[str, ...] = ()
    """Names of the earlier tensors that they point into."""
    copy: Copy | None = None
    fill: Fill | None = None
    shape: str | None = None
    body: tuple[int, ...] = ()
    duration_ns: int | None = None
    detail: str | None = None


class GraphJson(msgspec.Struct):
    name: str
    phase: str
    node_count: int
    nodes: list[NodeJson]
    edges: list[tuple[int, int, str]]


class GraphsJson(msgspec.Struct):
    schema: str
    schema_version: int
    entry: Entry
    environment: Environment
    caveats: tuple[Caveat, ...]
    graphs: list[GraphJson]


def render(capture: Capture, views: Sequence[View]) -> bytes:
    """The views, nodes one by one, newline at the end."""
    nodes = _Nodes(capture)
    graphs = []
    for view in views:
        graph = capture.graphs[view.graph]
        ids = [
            item.members[0] if item.members else -position - 1
            for position, item in enumerate(view.items)
        ]
        graphs.append(
            GraphJson(
                graph.name,
                graph.phase,
                view.node_count,
                [
                    nodes.of(graph.nodes[one]) if one >= 0 else NodeJson(one, "hidden")
                    for one in ids
                ],
                [
                    (
                        ids[link.source],
                        ids[link.target],
                        "hidden"
                        if link.hidden
                        else "programmatic"
                        if link.programmatic
                        else "full",
                    )
                    for link in view.links
                ],
            )
        )
    report = GraphsJson(
        "cgtool-graphs", VERSION, capture.entry, capture.environment, capture.caveats, graphs
    )
    return plain(report)


class _Nodes:
    """Resolves the names of one capture's nodes, each name once."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.places = Places(capture)
        names = [function.name for function in capture.functions]
        self._short = short_kernels(names)
        self._full = demangle_all(names)

    def of(self, node: Node) -> NodeJson:
        capture, launch = self.capture, node.kernel
        place = self.places.of(node)
        frame, forward = place.frame or _NOWHERE, place.forward_frame or _NOWHERE
        made = NodeJson(
            node.id,
            node.type,
            place.op,
            place.module,
            place.module_type,
            frame.file or None,
            frame.line or None,
            frame.function or None,
            place.forward_op,
            forward.file or None,
            forward.line or None,
            place.autograd_node,
            place.annotations,
            None if node.stream is None else capture.streams[node.stream].name,
            node.call,
            copy=node.copy,
            fill=node.fill,
            shape=node.shape,
            body=node.body,
            duration_ns=node.duration_ns,
            detail=node.detail,
        )
        if launch is not None:
            function = capture.functions[launch.function]
            made.kernel = self._short[function.name]
            made.kernel_demangled = self._full[function.name]
            made.kernel_mangled = function.name
            made.grid, made.block = launch.grid, launch.block
            made.registers = function.registers
            made.static_shared_bytes = function.static_shared_bytes
            made.dynamic_shared_bytes = launch.dynamic_shared_bytes
            made.local_bytes = function.local_bytes
            made.active_blocks = launch.active_blocks
            if launch.pointers:
                tensors = capture.memory.tensors
                into = [one.allocation for one in launch.pointers if one.allocation is not None]
                before = [
                    tensors[one.tensor].name for one in launch.pointers if one.tensor is not None
                ]
                made.allocations = tuple(dict.fromkeys(into))
                made.tensors = tuple(dict.fromkeys(before))
        return made


_NOWHERE = Frame("", 0, "")
