"""Which memory an address belongs to: an allocation of a graph's pool, or a tensor from before."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from cgtool.devices.cuda.liveness import freed_block
from cgtool.model.capture import Allocation, Segment, Tensor

Place = tuple[int | None, int | None]
"""(index into Memory.allocations, index into Memory.tensors); one of them is None."""


class AddressBook:
    """Looks up eight-byte words of kernel arguments and the ends of copies.

    ``moments[graph][node]`` is how many allocator events came before the node was created: one
    address serves many allocations in turn, and the moment tells which one a kernel was given.
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
        # Tensors by address; memory that nobody named follows as it is met.
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
        # An address inside a block that was since split lies behind newer, smaller neighbours.
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
