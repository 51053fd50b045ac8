"""What the reader of a diff must know, and what is not the same without being a difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from cgtool.analysis.diff.graphs import Matched
from cgtool.analysis.diff.report import Figure
from cgtool.analysis.diff.rows import Change
from cgtool.analysis.graph.graph_findings import look
from cgtool.analysis.graph.places import module_at_depth
from cgtool.analysis.graph.summary import WORK
from cgtool.model.capture import Capture

_ENVIRONMENT = (
    ("device", "GPU"),
    ("torch", "torch"),
    ("cuda_runtime", "CUDA"),
    ("driver", "driver"),
    ("allocator_config", "allocator settings"),
)


def notes(
    a: Capture,
    b: Capture,
    graphs: Sequence[Matched],
    every: Iterable[Change],
    memory: Iterable[Figure],
) -> Iterator[str]:
    """One sentence each."""
    yield from _environment(a, b)
    yield from _options(a, b)
    yield from _elsewhere(graphs)
    for made in graphs:
        if made.nodes.moved and not made.edges.moved:
            yield (
                f"{made.graph.name}: {_nodes(len(made.nodes.moved))} in another order of creation; "
                "what waits for what is the same"
            )
        if made.a is None or made.b is None:
            continue
        one, other = made.a.eager_launches, made.b.eager_launches
        if one is not None and other is not None and one != other:
            yield f"{made.graph.name}: eager made {one:,} launches in A, {other:,} in B"
    # Findings follow from pools, and from nodes that are no work of the device.
    if (
        any(row.a != row.b for row in memory if row.judged)
        or any(one.fact.type not in WORK for one in every)
        or any(made.a is None or made.b is None for made in graphs)
    ):
        yield from _one_sided(
            "finding",
            ((one.code, one.reason) for one in look(a)),
            ((one.code, one.reason) for one in look(b)),
        )
    yield from _one_sided(
        "note of the capture",
        ((one.code, one.text) for one in a.caveats),
        ((one.code, one.text) for one in b.caveats),
    )


def _environment(a: Capture, b: Capture) -> Iterator[str]:
    told = []
    for field, name in _ENVIRONMENT:
        one, other = getattr(a.environment, field), getattr(b.environment, field)
        if one != other:
            told.append(f"{name} {one or 'unknown'} in A, {other or 'unknown'} in B")
    if a.recorder != b.recorder:
        told.append(f"recorder {a.recorder or 'unknown'} in A, {b.recorder or 'unknown'} in B")
    if told:
        yield f"{'; '.join(told)}: kernels and sizes may differ for that alone"


def _options(a: Capture, b: Capture) -> Iterator[str]:
    ours, theirs = ({one.name: one.value for one in side.entry.options} for side in (a, b))
    for name in ours.keys() & theirs.keys() - {"device"}:
        # A command that lacks an option leaves it at None.
        if ours[name] != theirs[name] and "None" not in (ours[name], theirs[name]):
            yield f"captured with {name}={ours[name]} in A, {name}={theirs[name]} in B"


def _elsewhere(graphs: Sequence[Matched]) -> Iterator[str]:
    modules: Counter[tuple[str | None, str | None]] = Counter()
    for made in graphs:
        ours, theirs = made.facts_a.of, made.facts_b.of
        modules.update((ours[a].module, theirs[b].module) for a, b in made.elsewhere)
    renamed = [(pair, count) for pair, count in modules.most_common() if pair[0] != pair[1]]
    if renamed:
        ((before, after), _), *more = renamed
        rest = f" and {len(more)} more" if more else ""
        yield (
            f"{_nodes(sum(count for _, count in renamed))} do the same work from another module: "
            f"{module_at_depth(before, 99)} is now {module_at_depth(after, 99)}{rest}"
        )
    functions = modules.total() - sum(count for _, count in renamed)
    if functions:
        yield f"{_nodes(functions)} do the same work from another function"


def _one_sided(
    what: str, ours: Iterable[tuple[str, str]], theirs: Iterable[tuple[str, str]]
) -> Iterator[str]:
    before, after = dict(ours), dict(theirs)
    for side, one, other in (("A", before, after), ("B", after, before)):
        for code, text in one.items():
            if code not in other:
                yield f"{what} in {side} alone: {text} ({code})"


def _nodes(count: int) -> str:
    return f"{count:,} node{'' if count == 1 else 's'}"
