"""The graphs of a capture as JSON with every name resolved, for scripts.

One object: ``schema`` (``cgtool-graphs``), ``schema_version`` (1), ``entry``, ``environment``,
``caveats`` and ``graphs``. Each graph has ``name``, ``phase``, ``node_count`` (shown or not),
``nodes`` and ``edges``; each edge ``[source, target, kind]`` by node id, where kind is
``full``, ``programmatic``, or ``hidden`` for a path through nodes that a selection left out. Where
such paths meet and part again, a node with a negative id and the type ``hidden`` represents them.

A node has the keys of ``ResolvedNode``, and every field of ``Node``, ``KernelLaunch`` and
``Function`` (docs/capture-format.md) that is not an index; a new field is there by itself. A key
that would say nothing is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from cgtool.analysis.graph.places import NodeDescriber
from cgtool.analysis.graph.view import Link, View
from cgtool.model.capture import (
    Capture,
    Caveat,
    Entry,
    Environment,
    Frame,
    Function,
    KernelLaunch,
    Node,
)
from cgtool.model.schema import Field, fields, reader
from cgtool.render.json import plain

VERSION = 1


class ResolvedNode(msgspec.Struct, omit_defaults=True, gc=False):
    """What a node's indices refer to."""

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
    """In backward: the line of the forward op that created the autograd node."""
    forward_line: int | None = None
    autograd_node: str | None = None
    annotations: tuple[str, ...] = ()
    stream: str | None = None
    kernel: str | None = None
    """Short name that no other kernel of this capture has."""
    kernel_demangled: str | None = None
    kernel_mangled: str | None = None
    allocations: tuple[int, ...] = ()
    """Indices of the captured allocations that the arguments point into."""
    tensors: tuple[str, ...] = ()
    """Names of the earlier tensors that they point into."""


def _plain(struct: type[msgspec.Struct], *resolved: str) -> list[Field]:
    """The fields that are neither resolved above nor details of arguments."""
    return [
        field
        for field in fields(struct)
        if field.name not in resolved and not (field.struct is not None and field.many)
    ]


_LAUNCH = _plain(KernelLaunch, "function")
_FUNCTION = _plain(Function, "name")
_NODE = _plain(Node, "id", "type", "origin", "stream", "kernel")
_launch, _function, _node = reader(_LAUNCH), reader(_FUNCTION), reader(_NODE)
_NO_KERNEL = [() if field.many else None for field in (*_LAUNCH, *_FUNCTION)]

NodeJson: Any = msgspec.defstruct(
    "NodeJson",
    [(field.name, Any, () if field.many else None) for field in (*_LAUNCH, *_FUNCTION, *_NODE)],
    bases=(ResolvedNode,),
    omit_defaults=True,
    gc=False,
)
"""A node. Sizes in bytes, times in nanoseconds."""


class GraphJson(msgspec.Struct):
    """The nodes and edges of one graph that are shown."""

    name: str
    phase: str
    node_count: int
    nodes: list[Any]
    edges: list[tuple[int, int, str]]


class GraphsJson(msgspec.Struct):
    """The whole object."""

    schema: str
    schema_version: int
    entry: Entry
    environment: Environment
    caveats: tuple[Caveat, ...]
    graphs: list[GraphJson]


def render(capture: Capture, views: Sequence[View]) -> bytes:
    """The views, nodes one by one, newline at the end."""
    describer = NodeDescriber(capture)
    graphs = []
    for view in views:
        graph = capture.graphs[view.graph]
        ids = [
            item.members[0] if item.members else -position - 1
            for position, item in enumerate(view.items)
        ]
        nodes = [
            _json(describer, graph.nodes[number]) if number >= 0 else NodeJson(number, "hidden")
            for number in ids
        ]
        edges = [(ids[link.source], ids[link.target], _kind(link)) for link in view.links]
        graphs.append(GraphJson(graph.name, graph.phase, view.node_count, nodes, edges))
    report = GraphsJson(
        "cgtool-graphs", VERSION, capture.entry, capture.environment, capture.caveats, graphs
    )
    return plain(report)


def _kind(link: Link) -> str:
    if link.hidden:
        return "hidden"
    return "programmatic" if link.programmatic else "full"


def _json(describer: NodeDescriber, node: Node) -> Any:
    capture, launch = describer.capture, node.kernel
    place = describer.places.of(node)
    frame, forward = place.frame or _NOWHERE, place.forward_frame or _NOWHERE
    names: tuple[str | None, ...] = (None, None, None)
    of_kernel: Sequence[Any] = _NO_KERNEL
    if launch is not None:
        function = capture.functions[launch.function]
        index = launch.function
        names = (describer.short_kernels[index], describer.full_kernels[index], function.name)
        of_kernel = (*_launch(launch), *_function(function))
    return NodeJson(
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
        *names,
        *describer.arguments(node),
        *of_kernel,
        *_node(node),
    )


_NOWHERE = Frame("", 0, "")
