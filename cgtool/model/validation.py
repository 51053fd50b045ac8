"""Whether a capture is consistent. Numbers out of range are refused while decoding; what remains is
checked once after reading: every index refers to something, and a few rules between fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any

import msgspec

from cgtool.model.capture import Capture, Graph, topological
from cgtool.model.schema import Field, fields

MAX_NESTING = 64


def inconsistency(capture: Capture) -> str | None:
    """The first contradiction in a capture, in words; None for a consistent capture."""
    sizes = {**_sizes("Capture", capture), **_sizes("Memory", capture.memory)}
    if capture.ledger is not None:
        sizes |= _sizes("Ledger", capture.ledger)
    if not _sound([capture], Capture, sizes):
        return next(_dangling(capture, "", sizes))
    graphs = chain.from_iterable(map(_graph, capture.graphs))
    problems = chain(_origins(capture), graphs, _nesting(capture), _allocations(capture))
    return next(problems, None)


def _sizes(owner: str, struct: msgspec.Struct) -> dict[str, int]:
    """Lengths of the lists of a struct, by the names that references have for them."""
    return {
        f"{owner}.{field.name}": len(getattr(struct, field.name))
        for field in fields(type(struct))
        if field.many
    }


# --- references


@lru_cache(maxsize=64)
def _references(struct: type[msgspec.Struct]) -> tuple[Field, ...]:
    """The fields that are indices into a list, or hold structs that have such fields."""
    return tuple(
        field
        for field in fields(struct)
        if field.refers_to is not None or (field.struct is not None and _references(field.struct))
    )


def _sound(
    items: Sequence[msgspec.Struct], struct: type[msgspec.Struct], sizes: Mapping[str, int]
) -> bool:
    """Whether all references in ``items``, structs of one type, are in range.

    It goes by field rather than by item: a capture may have 100,000 nodes.
    """
    if struct is Graph and len(items) > 1:
        return all(_sound([graph], Graph, sizes) for graph in items)
    if struct is Graph:
        sizes = {**sizes, **_sizes("Graph", items[0])}
    for field in _references(struct):
        values: Iterable[Any] = map(attrgetter(field.name), items)
        if field.many:
            values = chain.from_iterable(values)
        if field.struct is not None:
            inner = [value for value in values if value is not None]
            if inner and not _sound(inner, field.struct, sizes):
                return False
        elif field.refers_to is not None:
            # A set first, because most nodes have the same few values.
            indices = set(values) - {None}
            if indices and not 0 <= min(indices) <= max(indices) < sizes[field.refers_to]:
                return False
    return True


def _dangling(item: msgspec.Struct, where: str, sizes: Mapping[str, int]) -> Iterator[str]:
    """A sentence for each reference that is out of range, with its path in the capture."""
    if isinstance(item, Graph):
        sizes = {**sizes, **_sizes("Graph", item)}
    for field in _references(type(item)):
        value = getattr(item, field.name)
        values: Sequence[Any] = value if field.many else [value]
        for position, inner in enumerate(values):
            path = f"{where}{field.name}[{position}]" if field.many else f"{where}{field.name}"
            if inner is None:
                continue
            if field.struct is not None:
                yield from _dangling(inner, f"{path}.", sizes)
            elif field.refers_to is not None and not 0 <= inner < sizes[field.refers_to]:
                count = sizes[field.refers_to]
                yield f"`{path}` is {inner}, but `{field.refers_to}` has {count:,} entries"


# --- rules that types do not express


def _origins(capture: Capture) -> Iterator[str]:
    for number, origin in enumerate(capture.origins):
        # A forward origin is interned before the backward one that names it: no cycles.
        if origin.forward is not None and origin.forward >= number:
            yield f"`origins[{number}].forward` is {origin.forward}, which is not an earlier origin"


def _graph(graph: Graph) -> Iterator[str]:
    nodes = graph.nodes
    if list(map(attrgetter("id"), nodes)) != list(range(len(nodes))):
        yield f"{graph.name}: its nodes are not numbered from 0 in order"
    calls = set(map(attrgetter("call"), nodes)) - {None} if graph.calls else ()
    if calls and max(calls) >= len(graph.calls):
        yield f"{graph.name}: a node has call {max(calls)}, but the graph has {len(graph.calls)}"
    if topological(len(nodes), graph.edges) is None:
        yield f"{graph.name}: its edges form a cycle"


def _nesting(capture: Capture) -> Iterator[str]:
    """Bodies come after their owner, belong to one node, and are not nested without end."""
    owner: dict[int, tuple[int, int]] = {}
    depth = [0] * len(capture.graphs)
    for index, graph in enumerate(capture.graphs):
        for node in graph.nodes:
            for body in node.body:
                where = f"{graph.name}: graph {body}, the body of node {node.id},"
                if body <= index:
                    yield f"{where} is not a later one"
                    return
                if body in owner:
                    yield f"{where} has another owner"
                owner[body] = (index, node.id)
                depth[body] = depth[index] + 1
                if depth[body] > MAX_NESTING:
                    yield f"{graph.name}: bodies inside bodies, {MAX_NESTING} deep"
    for index, graph in enumerate(capture.graphs):
        if graph.parent != owner.get(index):
            yield f"{graph.name}: its parent is not the node that runs it"


def _allocations(capture: Capture) -> Iterator[str]:
    counts = [len(graph.nodes) for graph in capture.graphs]
    for number, allocation in enumerate(capture.memory.allocations):
        if allocation.node is not None and allocation.node >= counts[allocation.graph]:
            yield f"allocation {number}: node {allocation.node} of {counts[allocation.graph]}"
        if allocation.freed_at is not None and allocation.freed_at < allocation.allocated_at:
            yield f"allocation {number}: freed before it was allocated"
