"""Which memory an address belongs to, and whether that memory is still allocated.

PyTorch's own liveness check (torch 2.13) sees what passes through the dispatcher. The nodes of the
graph show Triton and custom kernels too, on every release.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from cgtool.model.capture import Allocation, Capture, Frame, Graph, Node, Segment, Tensor
from cgtool.model.failure import cannot_tell, user_code

Place = tuple[int | None, int | None]
"""(index into Memory.allocations, index into Memory.tensors); one of them is None."""


class AddressBook:
    """Looks up eight-byte words of kernel arguments and both ends of copies.

    ``moments[graph][node]`` is how many allocator events came before the node was created: one
    address serves many allocations in turn, and the moment decides which one a kernel was given.
    """

    def __init__(
        self,
        allocations: Sequence[Allocation],
        tensors: Sequence[Tensor],
        others: Sequence[Segment],
        moments: dict[int, list[int]],
    ) -> None:
        self._moments = moments
        self._allocations = allocations
        self._at: dict[int, list[int]] = {}
        for index, allocation in enumerate(allocations):
            self._at.setdefault(allocation.address, []).append(index)
        self._starts = sorted(self._at)
        self._born = {
            start: [allocations[index].allocated_at for index in indices]
            for start, indices in self._at.items()
        }
        # Tensors by address; memory without a name is appended when it is first looked up.
        self.tensors = list(tensors)
        named = sorted(
            (tensor.address, index) for index, tensor in enumerate(tensors) if tensor.bytes
        )
        self._tensor_starts = [start for start, _ in named]
        self._tensor_order = [index for _, index in named]
        blocks = sorted(
            (block.address, block.bytes, block.state)
            for segment in others
            for block in segment.blocks
        )
        self._blocks = blocks
        self._block_starts = [block[0] for block in blocks]
        self._met: dict[int, int] = {}
        ends = [
            *((a.address, a.address + a.bytes) for a in allocations),
            *((t.address, t.address + t.bytes) for t in tensors if t.bytes),
            *((address, address + size) for address, size, _ in blocks),
        ]
        self.low = min((low for low, _ in ends), default=0)
        self.high = max((high for _, high in ends), default=0)

    def lookup(self, address: int, graph: int, node: int) -> Place | None:
        """The place of ``address`` as node ``node`` of graph ``graph`` saw it, or None."""
        allocation = self._allocation(address, graph, node)
        if allocation is not None:
            return allocation, None
        tensor = self._tensor(address)
        return None if tensor is None else (None, tensor)

    def _allocation(self, address: int, graph: int, node: int) -> int | None:
        moments = self._moments.get(graph)
        moment = moments[node] if moments is not None and node < len(moments) else None
        position = bisect_right(self._starts, address) - 1
        # An address inside a block that was split later follows newer, smaller neighbours.
        for back in range(position, max(-1, position - 8), -1):
            start = self._starts[back]
            indices = self._at[start]
            last = len(indices)
            if moment is not None:
                last = bisect_right(self._born[start], moment - 1)
            for index in reversed(indices[max(0, last - 4) : last]):
                if start + self._allocations[index].bytes > address:
                    return index
        return None

    def _tensor(self, address: int) -> int | None:
        position = bisect_right(self._tensor_starts, address) - 1
        for back in range(position, max(-1, position - 4), -1):
            index = self._tensor_order[back]
            tensor = self.tensors[index]
            if tensor.address <= address < tensor.address + tensor.bytes:
                return index
        position = bisect_right(self._block_starts, address) - 1
        if position < 0:
            return None
        start, size, state = self._blocks[position]
        if not start <= address < start + size:
            return None
        if start not in self._met:
            self._met[start] = len(self.tensors)
            self.tensors.append(
                Tensor("block outside the graphs' pools", "other", start, size)
                if state.startswith("active")
                else freed_block(start, size)
            )
        return self._met[start]


FREED = "freed"
"""``Tensor.kind`` of such memory."""
_POINTING = frozenset({"kernel", "memcpy", "memset", "batch_mem_op", "conditional"})
"""Types of node that hold device addresses."""
_SHOWN = 3


def freed_block(address: int, size: int) -> Tensor:
    """A block outside the graphs' pools that was free when the capture ended."""
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
    """Why the addresses in a node are unknown, or None when they are known."""
    if node.kernel is not None:
        return node.kernel.arguments_unread
    may_point = node.type in _POINTING or node.type.startswith("type_")
    if not may_point or node.copy is not None or node.fill is not None:
        return None
    return node.detail or "cgtool does not read addresses from nodes of this type"


def require_live_inputs(capture: Capture) -> None:
    """Require that no node points into freed memory.

    Raises CgtoolError: exit 4 for a node that does, exit 5 when the addresses of some nodes could
    not be read and those of the others are valid.
    """
    dead = {index for index, tensor in enumerate(capture.memory.tensors) if tensor.kind == FREED}
    unread: list[tuple[Graph, Node, str]] = []
    for graph in capture.graphs:
        for node in graph.nodes:
            if any(tensor in dead for tensor in _earlier_tensors(node)):
                raise user_code(
                    f"node {node.id} of {graph.name} reads or writes memory that was already "
                    "freed when the capture ended",
                    frames=_frames(capture, node),
                    why="a replay would use whatever is allocated at that address by then",
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
            f"the addresses of {len(unread)} nodes could not be read, and their inputs may be "
            f"freed: {', '.join(shown[:_SHOWN])}{more}",
            frames=_frames(capture, node),
            why=why,
            fix="leave out --check-input-liveness to capture without the check",
            phase=f"capture {graph.name}",
        )


def _frames(capture: Capture, node: Node) -> tuple[Frame, ...]:
    if node.origin is None:
        return ()
    return tuple(capture.frames[index] for index in capture.origins[node.origin].frames)
