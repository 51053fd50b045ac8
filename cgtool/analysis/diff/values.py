"""Where the values of two captures differ, which ``cgtool debug --values`` has saved.

On one device, with one PyTorch and in the same types, what computes the same writes the same bits.
Elsewhere kernels add in another order and round to another type. There, the least and the largest
number, the mean and the root of the mean square are compared, up to what rounding explains.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter, itemgetter

import msgspec
from msgspec.structs import replace

from cgtool.analysis.diff.graphs import Matched
from cgtool.analysis.graph.places import Places, file_line
from cgtool.analysis.stepped import node_name
from cgtool.analysis.units import count_text, figure_text
from cgtool.model.capture import Capture, Node, TensorValues

_FORMATS = {
    "float64": (52, 2.2e-308, 1.797e308), "float32": (23, 1.2e-38, 3.402e38),
    "bfloat16": (7, 1.2e-38, 3.389e38), "float16": (10, 6.1e-5, 65504.0),
    "float8_e4m3fn": (3, 2**-6, 448.0), "float8_e5m2": (2, 6.1e-5, 57344.0),
}  # fmt: skip
"""Bits of the significand behind the point, the smallest normal number, and the largest one."""
_FORMATS |= {"complex128": _FORMATS["float64"], "complex64": _FORMATS["float32"]}
_TF32_BITS = 10
"""Of a float32 that cuDNN multiplies by default, and cuBLAS where it may."""
_ROUNDINGS, _TERMS = 2**10, 2**20
"""Results that are rounded to their type one after the other, and terms of a sum. Errors of either
sign add up as a random walk does: with the root of their number.
A convolutional network in bfloat16 is 0.15 from float32 in backward, where sums cancel, a GPT-2 of
12 layers 0.03."""
_NEARLY = 0.99
"""Of the largest number. Masks hold that instead of an infinity, and each type has another one."""


class OpDifference(msgspec.Struct, frozen=True):
    """An op that writes other values in B."""

    graph: str
    a: int
    """The last node of the op."""
    b: int
    op: str
    module: str
    line: str
    """In B."""
    values_a: TensorValues
    """Of the tensor that differs most."""
    values_b: TensorValues
    relative: float
    """The largest difference of those figures, as a share of the largest number, the mean's of the
    root of the mean square (or of the type's smallest normal number, below which it is coarser).
    Infinite, null in JSON, where shapes, NaNs or infinities differ."""
    beyond_rounding: bool
    changed: bool
    """Whether the node itself is another one: its kernel, launch, shape or arguments."""


class ValuesDiff(msgspec.Struct, frozen=True):
    """The values of the ops that both captures have."""

    summary: str
    first: OpDifference | None
    """The first op that writes other bits; where those are not compared, beyond rounding."""
    inexact: str | None
    """Why bits are not compared; None if they are."""
    tolerance: float
    """The largest ``OpDifference.relative`` that rounding explains, in the coarsest type."""
    ops: int
    """That were compared."""
    changes: tuple[OpDifference, ...]
    """All that write other bits, in order."""

    @property
    def counted(self) -> tuple[OpDifference, ...]:
        """Where bits are not compared, only those beyond rounding."""
        return tuple(each for each in self.changes if not self.inexact or each.beyond_rounding)


def compare_values(a: Capture, b: Capture, graphs: Sequence[Matched]) -> ValuesDiff | None:
    """None unless both have values."""
    ops = [(matched, *pair) for matched in graphs for pair in _pairs(matched)]
    if not ops:
        return None
    types = {
        (x.dtype, y.dtype)
        for _, before, after in ops
        for x, y in zip(before.values, after.values, strict=False)
        if x.is_floating
    }
    inexact = _inexact(a, b, types)
    tolerance = _rounding(chain.from_iterable(types), simulated=a.environment.simulated)
    places = Places(b)
    judged: list[OpDifference | None] = []
    for matched, before, after in ops:
        pairs = zip(before.values, after.values, strict=False)
        different = [(_relative(*pair), pair) for pair in pairs if not _same(*pair)]
        if not different:
            judged.append(None)
            continue
        relative, most = max(different, key=itemgetter(0))
        place = places.of(after)
        judged.append(
            OpDifference(
                matched.graph.name,
                before.id,
                after.id,
                place.short_op or node_name(b, after),
                place.module_at(),
                file_line(place.line),
                *most,
                relative,
                relative > tolerance,
                (before.id, after.id) in matched.changed,
            )
        )
    diff = ValuesDiff("", None, inexact, tolerance, len(ops), tuple(filter(None, judged)))
    diff = replace(diff, first=next(iter(diff.counted), None))
    equal = judged.index(diff.first) if diff.first else len(ops)
    same_nodes = not any(matched.nodes.added or matched.nodes.removed for matched in graphs)
    return replace(diff, summary=" ".join(_sentences(diff, equal, same_nodes)))


def _rounding(types: Iterable[str], *, simulated: bool) -> float:
    """Results are rounded to the coarsest of the types; sums are kept in float32, those of float64
    in that."""
    coarsest = min((_FORMATS[each][0] for each in types if each in _FORMATS), default=23)
    sums = max(coarsest, 23)
    if coarsest == 23 and not simulated:
        coarsest = _TF32_BITS
    return math.sqrt(_ROUNDINGS) * math.ldexp(1, -coarsest) + math.sqrt(_TERMS) * math.ldexp(
        1, -sums
    )


def _inexact(a: Capture, b: Capture, types: Iterable[tuple[str, str]]) -> str | None:
    for name in ("torch", "cuda_runtime", "cpu" if a.environment.simulated else "device"):
        before, after = (getattr(each.environment, name) for each in (a, b))
        if before != after:
            return f"{name.replace('_', ' ')} is {before} in A and {after} in B"
    others = (f"{x} in A is {y} in B" for x, y in sorted(types) if x != y)
    return next(others, None)


def _pairs(matched: Matched) -> Iterator[tuple[Node, Node]]:
    """The nodes with the values of one op in A and B. An op may have other kernels, of which other
    ones match: what counts is that one of its nodes does."""
    graphs = [graph for graph in (matched.a, matched.b) if graph is not None]
    seen = [{_op(node): node for node in graph.nodes if node.values} for graph in graphs]
    if len(seen) < 2 or not all(seen):
        return
    for pair in sorted(matched.nodes.matched):
        calls = [_op(graph.nodes[node]) for graph, node in zip(graphs, pair, strict=True)]
        if calls[0] in seen[0] and calls[1] in seen[1]:
            yield seen[0].pop(calls[0]), seen[1].pop(calls[1])


def _op(node: Node) -> tuple[str, int]:
    return ("node", node.id) if node.call is None else ("call", node.call)


def _same(before: TensorValues, after: TensorValues) -> bool:
    return (before.dtype, before.shape, before.digest) == (after.dtype, after.shape, after.digest)


def _relative(*pair: TensorValues) -> float:
    """See ``OpDifference.relative``. Integers follow from rounding too: an argmax, a mask."""
    before, after = pair
    if before.shape != after.shape:
        return math.inf
    formats = [_FORMATS.get(each.dtype, _FORMATS["float64"]) for each in pair]
    ends = [[abs(each.minimum or 0.0), abs(each.maximum or 0.0)] for each in pair]
    masks = [max(end) > _NEARLY * most for end, (_, _, most) in zip(ends, formats, strict=True)]
    if any(masks) or not (before.is_floating and after.is_floating):
        return 0.0
    kinds = [(each.nans > 0, each.infinities > 0, each.finite > 0) for each in pair]
    if kinds[0] != kinds[1]:
        return math.inf
    normal = max(smallest for _, smallest, _ in formats)
    rms = [(each.norm or 0.0) / math.sqrt(each.finite or 1) for each in pair]
    largest, square = max(normal, *ends[0], *ends[1]), max(normal, *rms)
    return max(
        abs((before.minimum or 0.0) - (after.minimum or 0.0)) / largest,
        abs((before.maximum or 0.0) - (after.maximum or 0.0)) / largest,
        abs((before.mean or 0.0) - (after.mean or 0.0)) / square,
        abs(rms[0] - rms[1]) / square,
    )


# --- in words


def _sentences(diff: ValuesDiff, equal: int, same_nodes: bool) -> Iterator[str]:
    """``equal``: ops before the first that counts; ``same_nodes``: whether no graph has others."""
    ops, first = count_text(diff.ops, "op"), diff.first
    rounded = f"what rounding explains ({diff.tolerance:.2g} of the largest number)"
    beyond = next((each for each in diff.changes if each.beyond_rounding), None)
    if first is not None:
        before = f"{count_text(equal, 'op')} before it" if equal else "no op is before it"
        yield f"{len(diff.counted):,} of {ops} write other values, first {_named(first)}"
        yield f"({before}{' agree' * (equal > 0)})."
        if first.changed:
            yield "The node itself changed."
        elif not diff.inexact and same_nodes:
            yield "A parameter, an input or a seed (--seed) differs, or it adds in any order."
        if beyond is None:
            yield f"No difference is beyond {rounded}."
        elif beyond is not first:
            yield f"Beyond {rounded} first {_named(beyond)}."
    elif diff.changes:
        most = max(diff.changes, key=attrgetter("relative"))
        yield f"{ops} agree up to {rounded}. The largest difference: {_named(most)}."
    else:
        yield f"{ops} write the same, bit for bit."
    if diff.inexact:
        yield f"Bits are not compared: {diff.inexact}."


def _named(change: OpDifference) -> str:
    """``node 3 of forward, addmm at a.py:5 in mlp: out float32[8,64], norm 120.1 → 121.3``."""
    before, after = change.values_a, change.values_b
    rows = [
        (name, _figure(getattr(before, field)), _figure(getattr(after, field)))
        for name, field in _SHOWN
    ]
    figures = [f"{name} {x} → {y}" for name, x, y in rows if x != y]
    types = dict.fromkeys((before.type, after.type))
    line = f" at {change.line}" if change.line else ""
    return (
        f"node {change.b} of {change.graph}, {change.op}{line} in {change.module}: {after.name} "
        f"{' → '.join(types)}, {', '.join(figures) or 'in digits that are not shown'}"
    )


_SHOWN = (
    ("least", "minimum"), ("largest", "maximum"), ("mean", "mean"), ("norm", "norm"),
    ("NaN", "nans"), ("infinite", "infinities"),
)  # fmt: skip


def _figure(value: float | None) -> str:
    return f"{value:,}" if isinstance(value, int) else figure_text(value)
