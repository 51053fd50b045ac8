"""What each node of a graph must wait for, by the memory that it reads and writes: its edges say
what it does wait for.

An op call's record (``Graph.calls``) says which storages it read and which it wrote. What was
launched outside any op (a Triton kernel, a custom extension) has the pointers among its arguments
instead, each taken as read and written. A node of which neither is known keeps its place: all
before it come first, all after it wait.

What is not memory of the graph's own makes no dependency:

- Random ops read the seed and the offset that a replay is given, and count from there by an amount
  that the capture fixed for each (``at::PhiloxCudaState``): none waits for another.
- Matmuls of one stream share a cuBLAS workspace, which no record shows. On another stream a matmul
  has another workspace, so they are kept apart only by the stream.
- Storages are told apart by lifetime. Memory that the pool gives out twice in one capture is two
  storages; to run both uses at once, the pool would need room for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from cgtool.model.capture import Call, Capture, Graph, Node
from cgtool.model.order import topological

_KINDS = frozenset(("kernel", "memcpy", "memset", "child", "op"))
"""Types of nodes whose record, or whose pointers, say all that they do to memory."""
_UNSEEN = -1
"""Memory that some op call touched with no pointer to it in the arguments of its kernels: behind a
table of pointers in device memory, for one."""


@dataclass(frozen=True)
class Dependencies:
    """What the nodes of one graph wait for because of memory."""

    order: list[int]
    """All nodes, topologically."""
    before: list[list[int]]
    """By node id: nodes that must end first. Those which follow from others may be left out."""
    recorded: bool
    """The capture says what its op calls read and wrote."""
    guessed: tuple[int, ...]
    """Nodes judged by their pointers alone."""
    barriers: tuple[int, ...]
    """Nodes of which nothing is known."""


@dataclass
class _Ledger:
    """Who used which memory last. A user is a run of nodes; its number is its first node's."""

    writer: dict[int, int] = field(default_factory=dict)
    readers: dict[int, list[int]] = field(default_factory=dict)

    def use(self, user: int, reads: Sequence[int], writes: Sequence[int]) -> set[int]:
        """Those that must end first."""
        first: set[int] = set()
        for key in reads:
            if key in self.writer:
                first.add(self.writer[key])
        for key in writes:
            readers = self.readers.get(key)
            if readers:
                first.update(readers)
            elif key in self.writer:
                first.add(self.writer[key])
        for key in reads:
            self.readers.setdefault(key, []).append(user)
        for key in writes:
            self.writer[key] = user
            self.readers.pop(key, None)
        return first


def find(capture: Capture, graph: int) -> Dependencies:
    """The dependencies of ``capture.graphs[graph]``. Linear in nodes and in what they touch."""
    one = capture.graphs[graph]
    order = topological(len(one.nodes), one.edges)
    assert order is not None, "a capture that was read has no cycles"
    runs = list(_runs(one, order))
    guessed = [run.nodes[0].id for run in runs if run.call is None and run.places]
    hidden = any(run.unseen for run in runs)
    before: list[list[int]] = [[] for _ in order]
    last: dict[int, int] = {}
    last_of_call: dict[int, int] = {}
    ledger = _Ledger()
    sinks: set[int] = set()
    base: int | None = None
    for run in runs:
        user = run.nodes[0].id
        for earlier, later in zip(run.nodes, run.nodes[1:], strict=False):
            before[later.id].append(earlier.id)
        last[user] = run.nodes[-1].id
        if run.nodes[0].type == "empty":
            continue
        if run.barrier:
            before[user] = [last[one] for one in sorted(sinks)]
            ledger, sinks, base = _Ledger(), {user}, user
            last_of_call.clear()
            continue
        first = _uses(ledger, user, run, guessed=bool(guessed), hidden=hidden)
        if run.number is not None:
            if run.number in last_of_call:
                first.add(last_of_call[run.number])
            last_of_call[run.number] = user
        if not first and base is not None:
            first = {base}
        before[user] = sorted({last[one] for one in first})
        sinks -= first
        sinks.add(user)
    return Dependencies(
        order,
        before,
        recorded=any(call.writes for call in one.calls),
        guessed=tuple(guessed),
        barriers=tuple(run.nodes[0].id for run in runs if run.barrier),
    )


@dataclass
class _Run:
    """Nodes of one op call that follow one another, or one node without a call."""

    nodes: list[Node]
    number: int | None = None
    call: Call | None = None
    places: list[int] = field(default_factory=list)
    """Memory that pointers among the arguments lead to."""

    @property
    def barrier(self) -> bool:
        node = self.nodes[0]
        if node.type == "empty":
            return False
        return node.type not in _KINDS or (self.call is None and not self.places)

    @property
    def unseen(self) -> bool:
        call = self.call
        return call is not None and len(self.places) < len({*call.reads, *call.writes})


def _runs(graph: Graph, order: Sequence[int]) -> Iterator[_Run]:
    # A call without writes is one whose record is not known: what owns a node writes something.
    calls = [call if call.writes else None for call in graph.calls]
    run: _Run | None = None
    for at in order:
        node = graph.nodes[at]
        number = node.call
        call = calls[number] if calls and number is not None and node.type in _KINDS else None
        if run is not None and call is not None and run.number == number and run.call is call:
            run.nodes.append(node)
            continue
        if run is not None:
            yield _placed(run)
        run = _Run([node], number, call)
    if run is not None:
        yield _placed(run)


def _placed(run: _Run) -> _Run:
    found: set[int] = set()
    for node in run.nodes:
        places = _places(node)
        if run.call is None and None in places:
            # One of the ends is memory that nobody knows.
            return run
        found.update(place for place in places if place is not None)
    run.places = sorted(found)
    return run


def _places(node: Node) -> list[int | None]:
    """Allocations and tensors as negative numbers, apart from those of storages."""
    kernel, copy, fill = node.kernel, node.copy, node.fill
    if kernel is not None:
        if kernel.arguments_unread is not None:
            return [None]
        return [_place(one.allocation, one.tensor) for one in kernel.pointers]
    if copy is not None:
        ends = (
            (copy.kind[:1], copy.source_allocation, copy.source_tensor),
            (copy.kind[-1:], copy.destination_allocation, copy.destination_tensor),
        )
        return [_place(allocation, tensor) for kind, allocation, tensor in ends if kind != "h"]
    if fill is not None:
        return [_place(fill.destination_allocation, fill.destination_tensor)]
    return []


def _place(allocation: int | None, tensor: int | None) -> int | None:
    if allocation is not None:
        return -2 - 2 * allocation
    return None if tensor is None else -3 - 2 * tensor


def _uses(ledger: _Ledger, user: int, run: _Run, *, guessed: bool, hidden: bool) -> set[int]:
    """Op calls meet each other in storages. What is guessed meets all others in the places that
    its pointers lead to: to each other op calls are readers there."""
    if run.call is None:
        return ledger.use(user, (), [*run.places, _UNSEEN] if hidden else run.places)
    reads: Sequence[int] = run.call.reads
    if guessed:
        reads = [*reads, *run.places, *((_UNSEEN,) if run.unseen else ())]
    return ledger.use(user, reads, run.call.writes)
