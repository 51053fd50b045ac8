"""Memory that a graph points into and that is dead: freed before the capture ended.

PyTorch's own check (torch 2.13) sees what passes through the dispatcher; the nodes themselves show
Triton and custom kernels too, on every release.
"""

from __future__ import annotations

from collections.abc import Iterator

from cgtool.model.capture import Capture, Frame, Graph, Node, Tensor
from cgtool.model.failure import cannot_tell, user_code

FREED = "freed"
"""``Tensor.kind`` of such memory."""
_POINTING = frozenset({"kernel", "memcpy", "memset", "batch_mem_op", "conditional"})
"""Types of node that hold device addresses."""
_SHOWN = 3


def freed_block(address: int, size: int) -> Tensor:
    """A block outside the graphs' pools that nobody held when the capture ended."""
    return Tensor("freed block outside the graphs' pools", FREED, address, size)


def _earlier_tensors(node: Node) -> Iterator[int | None]:
    if node.kernel is not None:
        yield from (pointer.tensor for pointer in node.kernel.pointers)
    if node.copy is not None:
        yield node.copy.source_tensor
        yield node.copy.destination_tensor
    if node.fill is not None:
        yield node.fill.destination_tensor


def _unread(node: Node) -> str | None:
    """Why the addresses that a node holds are not known, or None when they are."""
    if node.kernel is not None:
        return node.kernel.arguments_unread
    may_point = node.type in _POINTING or node.type.startswith("type_")
    if not may_point or node.copy is not None or node.fill is not None:
        return None
    return node.detail or "cgtool reads no addresses of this type"


def require_live_inputs(capture: Capture) -> None:
    """Raises CgtoolError: exit 4 when a node was given an address in freed memory, exit 5 when the
    addresses of some nodes could not be read and the others are fine."""
    dead = {index for index, one in enumerate(capture.memory.tensors) if one.kind == FREED}
    unread: list[tuple[Graph, Node, str]] = []
    for graph in capture.graphs:
        for node in graph.nodes:
            if any(tensor in dead for tensor in _earlier_tensors(node)):
                raise user_code(
                    f"node {node.id} of {graph.name} reads or writes memory that was already "
                    "freed when the capture ended",
                    frames=_frames(capture, node),
                    why="a replay would use whatever comes to lie at that address",
                    fix="keep the tensor alive as long as the graph, as a static input",
                    phase=f"capture {graph.name}",
                )
            why = _unread(node)
            if why is not None:
                unread.append((graph, node, why))
    if unread:
        shown = [f"node {node.id} of {graph.name} ({node.type})" for graph, node, _ in unread]
        more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
        graph, node, why = unread[0]
        raise cannot_tell(
            f"the addresses of {len(unread)} nodes could not be read, so their inputs may be dead: "
            f"{', '.join(shown[:_SHOWN])}{more}",
            frames=_frames(capture, node),
            why=why,
            fix="leave out --check-input-liveness to capture without the check",
            phase=f"capture {graph.name}",
        )


def _frames(capture: Capture, node: Node) -> tuple[Frame, ...]:
    if node.origin is None:
        return ()
    return tuple(capture.frames[index] for index in capture.origins[node.origin].frames)
