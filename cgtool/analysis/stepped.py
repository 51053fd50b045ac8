"""What a replay that was stepped has shown: values by op and by module, and where a node is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from cgtool.analysis.graph.places import Places, frames_of
from cgtool.model.capture import Capture, Frames, Graph, Node, PointerArgument, TensorValues
from cgtool.model.finding import Code, Finding, NodeValues


def node_values(capture: Capture) -> Iterator[NodeValues]:
    """Of all nodes that were looked at, in order."""
    places = Places(capture)
    for graph in capture.graphs:
        for node in graph.nodes:
            if node.values:
                place = places.of(node)
                line = place.line
                file, number = (line.file, line.line) if line else (None, None)
                name = node_name(capture, node)
                yield NodeValues(graph.name, node.id, name, place.module, file, number, node.values)


class ModuleValues(msgspec.Struct, frozen=True):
    """What the ops of one module have written in a replay that was stepped."""

    graph: str
    module: str
    ops: int
    minimum: float | None
    maximum: float | None
    nans: int
    infinities: int


def values_by_module(values: Iterable[NodeValues], depth: int) -> list[ModuleValues]:
    """In the order of the first node, with so many levels of the path of a module."""
    groups: dict[tuple[str, str], list[NodeValues]] = {}
    for each in values:
        path = "(no module)" if each.module is None else each.module or "(root)"
        module = ".".join(path.split(".")[:depth])
        groups.setdefault((each.graph, module), []).append(each)
    return [
        ModuleValues(
            graph,
            module,
            len(group),
            min((t.minimum for t in _tensors(group) if t.minimum is not None), default=None),
            max((t.maximum for t in _tensors(group) if t.maximum is not None), default=None),
            sum(t.nans for t in _tensors(group)),
            sum(t.infinities for t in _tensors(group)),
        )
        for (graph, module), group in groups.items()
    ]


def _tensors(group: Iterable[NodeValues]) -> Iterator[TensorValues]:
    """Seeds and indices are integers, whose range says nothing."""
    return (t for each in group for t in each.tensors if "float" in t.dtype)


def node_name(capture: Capture, node: Node) -> str:
    """Its op; the kernel or the type of the node if it is of no op."""
    op = None if node.origin is None else capture.origins[node.origin].op
    if op is None and node.kernel is not None:
        return capture.functions[node.kernel.function].name
    return op or node.type


def at_node(code: Code, reason: str, capture: Capture, graph: Graph, node: Node) -> Finding:
    """A finding at a node, with its kernel, launch and memory."""
    origin = None if node.origin is None else capture.origins[node.origin]
    return Finding(
        code,
        reason,
        node_frames(capture, node),
        module=None if origin is None else origin.module,
        phase=f"capture {graph.name}",
        evidence=tuple(launch_facts(capture, node)),
    )


def node_frames(capture: Capture, node: Node) -> Frames:
    """The call chain of its op; of the forward op where a backward has no line of its own."""
    frames = frames_of(capture, node.origin)
    if not frames and node.origin is not None:
        frames = frames_of(capture, capture.origins[node.origin].forward)
    return frames


def launch_facts(capture: Capture, node: Node) -> Iterator[str]:
    """Its kernel, launch, and the memory that its arguments point into; a line each."""
    if node.kernel is not None:
        name = capture.functions[node.kernel.function].name
        grid, block = ("x".join(map(str, each)) for each in (node.kernel.grid, node.kernel.block))
        yield f"kernel {name}, grid {grid}, block {block}"
        for pointer in node.kernel.pointers:
            yield _argument(capture, pointer)
    if node.shape is not None:
        yield node.shape


def _argument(capture: Capture, pointer: PointerArgument) -> str:
    """``argument 0: 0x7f00 in parameter weight [4, 4] float32, 64 bytes``."""
    text = f"argument {pointer.parameter}: {pointer.address:#x} in "
    if pointer.tensor is not None:
        tensor = capture.memory.tensors[pointer.tensor]
        start, size = tensor.address, tensor.bytes
        shape = f" {list(tensor.shape)} {tensor.dtype}" if tensor.dtype else ""
        text += f"{tensor.name}{shape}, {size:,} bytes"
    elif pointer.allocation is not None:
        allocation = capture.memory.allocations[pointer.allocation]
        start, size = allocation.address, allocation.requested_bytes
        made = "" if allocation.node is None else f" of node {allocation.node}"
        text += f"memory{made} in the graph's pool, {size:,} bytes"
    else:
        return text + "no known memory"
    return text + (
        f", {pointer.address - start:,} bytes from its start" * (pointer.address > start)
    )
