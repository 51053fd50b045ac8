"""JSON of reports and captures: ``{"schema": NAME, "schema_version": 1, ...}``."""

from __future__ import annotations

from typing import Any

import msgspec

from cgtool.analysis.names import demangle, short_kernel
from cgtool.analysis.places import Places
from cgtool.model.capture import Capture, Copy, Fill, Node

VERSION = 1


def encode(schema: str, report: Any) -> bytes:
    """A report of an analysis as one indented JSON object, with a newline."""
    body = msgspec.to_builtins(report)
    text = msgspec.json.encode({"schema": schema, "schema_version": VERSION, **body})
    return msgspec.json.format(text, indent=2) + b"\n"


class NodeView(msgspec.Struct, omit_defaults=True):
    """A node with its names resolved. ``line`` is the line that the work belongs to."""

    id: int
    type: str
    op: str | None = None
    module: str | None = None
    file: str | None = None
    line: int | None = None
    function: str | None = None
    backward_file: str | None = None
    backward_line: int | None = None
    autograd_node: str | None = None
    annotations: tuple[str, ...] = ()
    stream: str | None = None
    kernel: str | None = None
    kernel_short: str | None = None
    mangled: str | None = None
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    registers: int | None = None
    static_shared_bytes: int | None = None
    dynamic_shared_bytes: int | None = None
    active_blocks: int | None = None
    allocations: tuple[int, ...] = ()
    tensors: tuple[str, ...] = ()
    copy: Copy | None = None
    fill: Fill | None = None
    shape: str | None = None
    detail: str | None = None


class GraphView(msgspec.Struct, omit_defaults=True):
    name: str
    phase: str
    nodes: list[NodeView]
    edges: tuple[Any, ...]
    """(source, target, from_port, to_port, type)."""


def capture_json(capture: Capture, keep: list[list[int]]) -> bytes:
    """The graphs with every name resolved. ``keep`` lists the node ids of each graph."""
    places = Places(capture)
    names = [(demangle(one.name), short_kernel(one.name)) for one in capture.functions]
    graphs = []
    for graph, ids in zip(capture.graphs, keep, strict=True):
        chosen = set(ids)
        everything = len(chosen) == len(graph.nodes)
        graphs.append(
            GraphView(
                graph.name,
                graph.phase,
                [_node(capture, places, names, graph.nodes[one]) for one in ids],
                graph.edges
                if everything
                else tuple(
                    edge for edge in graph.edges if edge.source in chosen and edge.target in chosen
                ),
            )
        )
    head = {
        "schema": "cgtool-graphs",
        "schema_version": VERSION,
        "entry": capture.entry,
        "environment": capture.environment,
        "caveats": capture.caveats,
        "graphs": graphs,
    }
    return msgspec.json.encode(head) + b"\n"


def _node(capture: Capture, places: Places, names: list[tuple[str, str]], node: Node) -> NodeView:
    place = places.of(node)
    line = place.line
    view = NodeView(
        node.id,
        node.type,
        place.op,
        place.module,
        autograd_node=place.autograd_node,
        annotations=place.annotations,
        stream=capture.streams[node.stream].name if node.stream is not None else None,
        copy=node.copy,
        fill=node.fill,
        shape=node.shape,
        detail=node.detail,
    )
    if line is not None:
        view.file, view.line, view.function = line.file, line.line, line.function
    if place.forward_frame is not None and place.frame is not None:
        view.backward_file, view.backward_line = place.frame.file, place.frame.line
    launch = node.kernel
    if launch is not None:
        function = capture.functions[launch.function]
        view.kernel, view.kernel_short = names[launch.function]
        view.mangled = function.name
        view.grid, view.block = launch.grid, launch.block
        view.registers = function.registers
        view.static_shared_bytes = function.static_shared_bytes
        view.dynamic_shared_bytes = launch.dynamic_shared_bytes
        view.active_blocks = launch.active_blocks
        if launch.pointers:
            view.allocations = tuple(
                {one.allocation: None for one in launch.pointers if one.allocation is not None}
            )
            view.tensors = tuple(
                {
                    capture.memory.tensors[one.tensor].name: None
                    for one in launch.pointers
                    if one.tensor is not None
                }
            )
    return view
