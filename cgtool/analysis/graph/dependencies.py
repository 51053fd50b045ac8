"""The nodes that each node of a graph must wait for, by the memory that it reads and writes.

(Its edges are the nodes that it does wait for.)

An op call's record (``Graph.calls``) says which storages it read and which it wrote. What was
launched outside any op (a Triton kernel, a custom extension) has the pointers among its arguments
instead, each taken as read and written. A node with neither keeps its place: all
before it come first, all after it wait.

What is not memory of the graph's own makes no dependency:

- Random ops read the seed and the offset that a replay is given, and count from there by an amount
  that the capture fixed for each (``at::PhiloxCudaState``): none waits for another.
- Matmuls of one stream share a cuBLAS workspace, which no record shows. On another stream a matmul
  has another workspace, so they are kept apart only by the stream.
- Storages are distinguished by lifetime. Memory that the pool gives out twice in one capture is two
  storages; to run both uses at once, the pool would need room for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from cgtool.analysis.graph.schedule import in_order
from cgtool.model.capture import Call, Capture, Graph, Node

_KINDS = frozenset(("kernel", "memcpy", "memset", "child", "op"))
"""Types of nodes whose record, or whose pointers, say all that they do to memory."""
_UNSEEN = -1
"""Memory that an op call touched without a pointer to it among the arguments of its kernels, for
example behind a table of pointers in device memory."""


@dataclass(frozen=True)
class Dependencies:
    """The dependencies among the nodes of one graph that follow from memory."""

    order: list[int]
    """All nodes, topologically."""
    before: list[Sequence[int]]
    """By node id: nodes that must end first. Dependencies implied by others may be omitted."""
    recorded: bool
    """The capture records what its op calls read and wrote."""
    guessed: tuple[int, ...]
    """Nodes that are judged only by their pointers."""
    barriers: tuple[int, ...]
    """Nodes about which nothing is known."""


@dataclass
class _Ledger:
    """Who used which memory last. A user is a run of nodes, numbered by its first node."""

    writer: dict[int, int] = field(default_factory=dict)
    readers: dict[int, list[int]] = field(default_factory=dict)

    def use(self, user: int, reads: Sequence[int], writes: Sequence[int]) -> set[int]:
        """The users that must end first."""
        first = {self.writer[key] for key in reads if key in self.writer}
        for key in writes:
            if key in self.readers:
                first.update(self.readers[key])
            elif key in self.writer:
                first.add(self.writer[key])
        for key in reads:
            self.readers.setdefault(key, []).append(user)
        for key in writes:
            self.writer[key] = user
            self.readers.pop(key, None)
        return first


def find_dependencies(capture: Capture, index: int) -> Dependencies:
    """The dependencies of ``capture.graphs[index]``. Linear in nodes and in what they touch."""
    graph = capture.graphs[index]
    order = in_order(graph)
    runs = _runs(graph, order)
    guessed = [order[run.first] for run in runs if run.call is None and run.places]
    barriers = [order[run.first] for run in runs if run.barrier]
    if guessed:
        # Op calls meet these in what their pointers lead to.
        for run in runs:
            if run.call is not None:
                run.places = _places(graph, order[run.first : run.end])
                run.unseen = len(run.places) < len({*run.call.reads, *run.call.writes})
    any_unseen = any(run.unseen for run in runs)
    before: list[Sequence[int]] = [()] * len(order)
    last: dict[int, int] = {}
    last_of_call: dict[int, int] = {}
    ledger = _Ledger()
    sinks: set[int] = set()
    base: int | None = None
    for run in runs:
        user = order[run.first]
        last[user] = order[run.end - 1]
        for at in range(run.first + 1, run.end):
            before[order[at]] = (order[at - 1],)
        if run.barrier:
            before[user] = tuple(sorted(last[end] for end in sinks))
            ledger, sinks, base = _Ledger(), {user}, user
            last_of_call.clear()
            continue
        if run.call is None and not run.places:
            # An empty node.
            continue
        first = ledger.use(user, *_touched(run, any_unseen))
        if run.number is not None:
            if run.number in last_of_call:
                first.add(last_of_call[run.number])
            last_of_call[run.number] = user
        if not first and base is not None:
            first.add(base)
        before[user] = tuple(sorted([last[source] for source in first]))
        if barriers:
            sinks -= first
            sinks.add(user)
    return Dependencies(
        order,
        before,
        recorded=any(call.writes for call in graph.calls),
        guessed=tuple(guessed),
        barriers=tuple(barriers),
    )


class _Run(msgspec.Struct, gc=False):
    """Nodes of one op call that follow one another, or one node without a call."""

    first: int
    """Position in the order of nodes."""
    end: int
    """Position after the last."""
    number: int | None
    call: Call | None
    places: Sequence[int] = ()
    """Memory that pointers among the arguments lead to."""
    barrier: bool = False
    unseen: bool = False
    """It touches memory that none of its pointers leads to."""


def _runs(graph: Graph, order: Sequence[int]) -> list[_Run]:
    # A call without writes is one whose record is not known: what owns a node writes something.
    calls = [call if call.writes else None for call in graph.calls]
    runs: list[_Run] = []
    for at, node_id in enumerate(order):
        node = graph.nodes[node_id]
        number, of_kind = node.call, node.type in _KINDS
        call = calls[number] if calls and number is not None and of_kind else None
        if call is None:
            places = _places(graph, (node_id,)) if of_kind else ()
            barrier = not places and node.type != "empty"
            runs.append(_Run(at, at + 1, number, None, places, barrier))
        elif runs and runs[-1].number == number and runs[-1].call is not None:
            runs[-1].end = at + 1
        else:
            runs.append(_Run(at, at + 1, number, call))
    return runs


def _touched(run: _Run, any_unseen: bool) -> tuple[Sequence[int], Sequence[int]]:
    """The places that a run reads and writes. Op calls meet each other in storages; they meet what
    is guessed in the places that pointers lead to, where they count as readers: so they do not wait
    for each other there."""
    if run.call is None:
        return (), (*run.places, _UNSEEN) if any_unseen else run.places
    if not run.places and not run.unseen:
        return run.call.reads, run.call.writes
    unseen = (_UNSEEN,) if run.unseen else ()
    return (*run.call.reads, *run.places, *unseen), run.call.writes


def _places(graph: Graph, nodes: Sequence[int]) -> tuple[int, ...]:
    """The memory that the parameters of all these nodes lead to; none when one of them touches
    memory that nobody knows."""
    places = dict.fromkeys(place for node in nodes for place in _places_of(graph.nodes[node]))
    return () if None in places else tuple(place for place in places if place is not None)


def _places_of(node: Node) -> list[int | None]:
    """None for memory of the device that nobody knows."""
    kernel, copy, fill = node.kernel, node.copy, node.fill
    if kernel is not None:
        if kernel.arguments_unread is not None:
            return [None]
        return [_place(pointer.allocation, pointer.tensor) for pointer in kernel.pointers]
    places: list[int | None] = []
    if copy is not None and not copy.kind.startswith("h"):
        places.append(_place(copy.source_allocation, copy.source_tensor))
    if copy is not None and not copy.kind.endswith("h"):
        places.append(_place(copy.destination_allocation, copy.destination_tensor))
    if fill is not None:
        places.append(_place(fill.destination_allocation, fill.destination_tensor))
    return places


def _place(allocation: int | None, tensor: int | None) -> int | None:
    """Negative, apart from the numbers of storages and from ``_UNSEEN``."""
    if allocation is not None:
        return -2 - 2 * allocation
    return None if tensor is None else -3 - 2 * tensor
