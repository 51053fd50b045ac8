"""What a replay that was stepped has shown: values by op and by module, and where a node is."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from cgtool.analysis.graph.kernel_names import short_kernel
from cgtool.analysis.graph.places import Places, frames_of, module_at_depth
from cgtool.analysis.units import dimensions_text, figure_text
from cgtool.findings import code
from cgtool.model.capture import (
    Call,
    Capture,
    Frames,
    Graph,
    KernelLaunch,
    Node,
    PointerArgument,
    TensorValues,
)
from cgtool.model.finding import Code, Finding, NodeValues

_ROWS = 64
"""Of the table by module, if the depth is not given."""
_DEEPEST = 12
"""Levels of module paths."""


NODE_FAULTS = code("node-faults")


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
    writes: str
    """``float32[8,64]``; if its tensors have several shapes, their types."""
    minimum: float | None
    maximum: float | None
    rms: float | None
    """Root of the mean square of the finite numbers."""
    zeros_share: float | None
    nans: int
    infinities: int


def values_by_module(values: Iterable[NodeValues], depth: int | None) -> list[ModuleValues]:
    """In the order of the first node, with so many levels of the path of a module; by default as
    many as fit a few screens."""

    def by_module(depth: int) -> dict[tuple[str, str], list[NodeValues]]:
        groups = defaultdict(list)
        for each in values:
            groups[each.graph, module_at_depth(each.module, depth)].append(each)
        return groups

    groups = by_module(depth or 1)
    for deeper in range(2, 1 if depth else _DEEPEST):
        more = by_module(deeper)
        if len(more) > _ROWS:
            break
        groups = more
    return [_module(*key, group) for key, group in groups.items()]


def _module(graph: str, module: str, group: Sequence[NodeValues]) -> ModuleValues:
    every = [tensor for each in group for tensor in each.tensors]
    tensors = [tensor for tensor in every if tensor.is_floating]
    types = {tensor.type for tensor in tensors or every}
    if len(types) > 1:
        types = {tensor.dtype for tensor in tensors or every}
    finite = sum(tensor.finite for tensor in tensors)
    squares = sum(tensor.norm * tensor.norm for tensor in tensors if tensor.norm is not None)
    return ModuleValues(
        graph,
        module,
        len(group),
        ", ".join(sorted(types)),
        min((each.minimum for each in tensors if each.minimum is not None), default=None),
        max((each.maximum for each in tensors if each.maximum is not None), default=None),
        math.sqrt(squares / finite) if finite else None,
        sum(each.zeros for each in tensors) / finite if finite else None,
        sum(each.nans for each in tensors),
        sum(each.infinities for each in tensors),
    )


def node_name(capture: Capture, node: Node) -> str:
    """Its op; the kernel or the type of the node if it is of no op."""
    op = None if node.origin is None else capture.origins[node.origin].op
    if op is None and node.kernel is not None:
        return short_kernel(capture.functions[node.kernel.function].name)
    return op or node.type


def node_text(capture: Capture, graph: Graph, node: Node) -> str:
    """``node 17 of forward, `aten::mm```."""
    return f"node {node.id} of {graph.name}, `{node_name(capture, node)}`"


def values_text(values: TensorValues) -> str:
    """``3 NaN, first at [0, 2], least -0.98, largest 0.93, mean 0.0054, norm 57.6, 0 zeros``."""
    counts = [(values.nans, "NaN"), (values.infinities, "infinite")]
    words = [f"{count:,} {name}" for count, name in counts if count]
    if values.first:
        words.append(f"first at {list(values.first)}")
    figures = values.minimum, values.maximum, values.mean, values.norm
    if values.finite:
        names = ("least", "largest", "mean", "norm")
        words += [f"{name} {figure_text(each)}" for name, each in zip(names, figures, strict=True)]
        words.append(f"{values.zeros:,} zeros")
    return ", ".join(words)


def values_read(capture: Capture, graph: Graph, node: Node) -> Iterator[str]:
    """The values that the op of a node has read, of those that ops before it in the graph wrote:
    ``reads out of node 83, `aten::sub`, float32[8,64]: least -0.22, ...``; and where infinities
    among them come from, if that is another op."""
    for writer in _writers(graph, node):
        for values in writer.values:
            name = f"{values.name} of node {writer.id}, `{node_name(capture, writer)}`"
            yield f"reads {name}, {values.type}: {values_text(values)}"
    direct = origin = _infinite(graph, node)
    while origin is not None and (before := _infinite(graph, origin)) is not None:
        origin = before
    if origin is not None and origin is not direct:
        frames = node_frames(capture, origin)
        at = f", {frames[0].short}" if frames else ""
        yield f"the infinities come from node {origin.id}, `{node_name(capture, origin)}`{at}"


def _infinite(graph: Graph, node: Node) -> Node | None:
    """The first op that wrote infinities which the op of a node has read."""
    read = (each for each in _writers(graph, node) if any(x.infinities for x in each.values))
    return next(read, None)


def _writers(graph: Graph, node: Node) -> list[Node]:
    """The last nodes of the ops before a node that wrote what its op reads."""

    def call_of(each: Node) -> Call:
        return Call() if each.call is None or not graph.calls else graph.calls[each.call]

    writers: dict[int, Node] = {}
    for each in graph.nodes[: node.id]:
        if each.values and each.call != node.call:
            writers |= dict.fromkeys(call_of(each).writes, each)
    read = [writers[each] for each in call_of(node).reads if each in writers]
    return [*{each.id: each for each in read}.values()]


def at_node(code: Code, reason: str, capture: Capture, graph: Graph, node: Node | None) -> Finding:
    """A finding at a node, with its kernel, launch and memory, if it is known."""
    if node is None:
        return Finding(code, reason, phase=f"capture {graph.name}")
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
    """The call chain of its op; of the forward op where autograd itself runs a backward."""
    frames = frames_of(capture, node.origin)
    if not frames and node.origin is not None:
        frames = frames_of(capture, capture.origins[node.origin].forward)
    return frames


def launch_facts(capture: Capture, node: Node) -> Iterator[str]:
    """Its kernel, launch, and the memory that its arguments point into; a line each."""
    if node.kernel is not None:
        yield launch_text(capture.functions[node.kernel.function].name, node.kernel)
        for pointer in node.kernel.pointers:
            yield _argument(capture, pointer)
    if node.shape is not None:
        yield node.shape


def launch_text(name: str, launch: KernelLaunch) -> str:
    """``kernel f, grid 32, block 16×16``."""
    grid, block = map(dimensions_text, (launch.grid, launch.block))
    return f"kernel {short_kernel(name)}, grid {grid}, block {block}"


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
