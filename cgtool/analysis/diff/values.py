"""Where the values of two captures differ, which ``cgtool debug --values`` has saved.

On one device, with one PyTorch and in the same types, what computes the same writes the same bits.
Elsewhere kernels add in another order and round to another type. There, the least and the largest
number, the mean and the root of the mean square are compared, up to what rounding explains.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from cgtool.analysis.diff.graphs import Matched
from cgtool.analysis.graph.places import Place, Places, file_line
from cgtool.analysis.stepped import node_name
from cgtool.analysis.units import count_text, figure_text
from cgtool.model.capture import Capture, Graph, Node, TensorValues

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
_ROWS, _DEEPEST = 32, 12
"""Of the table by module, and levels of its paths."""
_NEARLY = 0.99
"""Of the largest number. Masks hold that instead of an infinity, and each type has another one."""

Pairs = Sequence[tuple[TensorValues, TensorValues]]
"""The tensors that an op has written in A and in B."""


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
    relative: float | None
    """The largest difference of those figures, as a share of the largest number, the mean's of the
    root of the mean square (or of the type's smallest normal number, below which it is coarser).
    None where shapes, NaNs or infinities differ."""
    beyond_rounding: bool
    changed: bool
    """Whether the node itself is another one: its kernel, launch, shape or arguments."""


class ModuleDifference(msgspec.Struct, frozen=True):
    """The ops of a module, some of which write other values in B."""

    graph: str
    module: str
    ops: int
    """That were compared."""
    different: int
    beyond_rounding: int
    op: str
    """The first one."""
    line: str
    relative: float | None
    """The largest; None if there is none for one op."""


class ValuesDiff(msgspec.Struct, frozen=True):
    """The values of the ops that both captures have."""

    summary: str
    different: bool
    """Whether an op writes other bits; where those are not compared, beyond rounding."""
    inexact: str | None
    """Why bits are not compared; None if they are."""
    tolerance: float
    """The largest ``OpDifference.relative`` that rounding explains, in the coarsest type."""
    ops: int
    """That were compared."""
    changes: tuple[OpDifference, ...]
    """In the order of A."""
    modules: tuple[ModuleDifference, ...]


def compare_values(a: Capture, b: Capture, graphs: Sequence[Matched]) -> ValuesDiff | None:
    """None unless both have values. Modules are as deep as fits on a screen."""
    ops = [(matched, *pair) for matched in graphs for pair in _pairs(matched)]
    if not ops:
        return None
    tensors = [list(zip(before.values, after.values, strict=False)) for _, before, after in ops]
    types = {(x.dtype, y.dtype) for pairs in tensors for x, y in pairs if x.is_floating}
    inexact = _inexact(a, b, types)
    known = {each for pair in types for each in pair}
    tolerance = rounding(known, simulated=a.environment.simulated)
    places = Places(b)
    judged = [
        _change(matched, before, after, pairs, places.of(after), node_name(b, after), tolerance)
        for (matched, before, after), pairs in zip(ops, tensors, strict=True)
    ]
    changes = tuple(each for each in judged if each is not None)
    modules: list[ModuleDifference] = []
    for depth in range(1, _DEEPEST):
        rows: dict[tuple[str, str], list[OpDifference | None]] = defaultdict(list)
        for (matched, _, after), change in zip(ops, judged, strict=True):
            rows[matched.graph.name, places.of(after).module_at(depth)].append(change)
        more = list(_modules(rows))
        if len(more) > _ROWS:
            break
        modules = more
    shown = [each for each in changes if inexact is None or each.beyond_rounding]
    equal = judged.index(shown[0]) if shown else len(ops)
    return ValuesDiff(
        " ".join(
            _sentences(
                changes, shown, ops=len(ops), equal=equal, inexact=inexact, tolerance=tolerance
            )
        ),
        bool(shown),
        inexact,
        tolerance,
        len(ops),
        changes,
        tuple(modules),
    )


def rounding(types: Iterable[str], *, simulated: bool) -> float:
    """The largest ``OpDifference.relative`` that rounding explains: results are rounded to the
    coarsest of the types, sums are kept in float32, of float64 in that."""
    bits = [_FORMATS[each][0] for each in types if each in _FORMATS]
    coarsest, sums = min(bits, default=23), 52 if min(bits, default=23) == 52 else 23
    if coarsest == 23 and not simulated:
        coarsest = _TF32_BITS
    return float(math.sqrt(_ROUNDINGS) * 2**-coarsest + math.sqrt(_TERMS) * 2**-sums)


def _inexact(a: Capture, b: Capture, types: Iterable[tuple[str, str]]) -> str | None:
    names = ["torch", "cuda_runtime", "cpu" if a.environment.simulated else "device"]
    for name in names:
        before, after = (getattr(each.environment, name) for each in (a, b))
        if before != after:
            return f"{name.replace('_', ' ')} is {before} in A and {after} in B"
    other = next((pair for pair in sorted(types) if pair[0] != pair[1]), None)
    return None if other is None else f"{other[0]} in A is {other[1]} in B"


def _pairs(matched: Matched) -> Iterator[tuple[Node, Node]]:
    """The nodes with the values of one op in A and B. An op may have other kernels, of which other
    ones match: what counts is that one of its nodes does."""
    if matched.a is None or matched.b is None:
        return
    ours, theirs = _values_of(matched.a), _values_of(matched.b)
    if not (ours and theirs):
        return
    for left, right in sorted(matched.nodes.matched):
        before = ours.pop(_op(matched.a.nodes[left]), None)
        after = theirs.pop(_op(matched.b.nodes[right]), None) if before is not None else None
        if before is not None and after is not None:
            yield before, after


def _op(node: Node) -> tuple[str, int]:
    return ("node", node.id) if node.call is None else ("call", node.call)


def _values_of(graph: Graph) -> dict[tuple[str, int], Node]:
    return {_op(node): node for node in graph.nodes if node.values}


def _change(
    matched: Matched,
    before: Node,
    after: Node,
    pairs: Pairs,
    place: Place,
    name: str,
    tolerance: float,
) -> OpDifference | None:
    different = [(_relative(*pair), pair) for pair in pairs if not _same(*pair)]
    if not different:
        return None
    relative, most = max(different, key=lambda each: math.inf if each[0] is None else each[0])
    return OpDifference(
        matched.graph.name,
        before.id,
        after.id,
        place.short_op or name,
        place.module_at(),
        file_line(place.line),
        *most,
        relative,
        relative is None or relative > tolerance,
        (before.id, after.id) in matched.changed,
    )


def _same(before: TensorValues, after: TensorValues) -> bool:
    return (before.dtype, before.shape, before.digest) == (after.dtype, after.shape, after.digest)


def _relative(before: TensorValues, after: TensorValues) -> float | None:
    """See ``OpDifference.relative``. Integers follow from rounding too: an argmax, a mask."""
    if before.shape != after.shape:
        return None
    if not (before.is_floating and after.is_floating):
        return 0.0
    if _is_mask(before) or _is_mask(after):
        return 0.0
    for x, y in ((before.nans, after.nans), (before.infinities, after.infinities)):
        if bool(x) != bool(y):
            return None
    if None in (before.minimum, after.minimum):
        return None if before.minimum != after.minimum else 0.0
    low, high, mean, rms = zip(*map(_figures, (before, after)), strict=True)
    normal = max(_FORMATS.get(each.dtype, _FORMATS["float64"])[1] for each in (before, after))
    largest = max(normal, *map(abs, (*low, *high)))
    shares: list[float] = [abs(x - y) / largest for x, y in (low, high)]
    shares += [abs(x - y) / max(normal, *rms) for x, y in (mean, rms)]
    return max(shares)


def _is_mask(values: TensorValues) -> bool:
    limit = _FORMATS.get(values.dtype, _FORMATS["float64"])[2]
    ends = values.minimum or 0.0, values.maximum or 0.0
    return max(map(abs, ends)) > _NEARLY * limit


def _figures(values: TensorValues) -> tuple[float, float, float, float]:
    rms = (values.norm or 0.0) / math.sqrt(values.finite or 1)
    return values.minimum or 0.0, values.maximum or 0.0, values.mean or 0.0, rms


def _modules(
    rows: dict[tuple[str, str], list[OpDifference | None]],
) -> Iterator[ModuleDifference]:
    for (graph, module), ops in rows.items():
        changes = [each for each in ops if each is not None]
        if changes:
            relatives = [each.relative for each in changes]
            largest = (
                None if None in relatives else max(each for each in relatives if each is not None)
            )
            beyond = sum(each.beyond_rounding for each in changes)
            first = changes[0]
            yield ModuleDifference(
                graph, module, len(ops), len(changes), beyond, first.op, first.line, largest
            )


# --- in words


def _sentences(
    changes: Sequence[OpDifference],
    shown: Sequence[OpDifference],
    *,
    ops: int,
    equal: int,
    inexact: str | None,
    tolerance: float,
) -> Iterator[str]:
    """``shown``: the changes that count; ``equal``: the number of ops before them."""
    rounded = f"what rounding explains ({tolerance:.2g} of the largest number)"
    beyond = next((each for each in changes if each.beyond_rounding), None)
    if shown:
        first = shown[0]
        yield f"{len(shown):,} of {count_text(ops, 'op')} write other values, first"
        yield f"{_named(first)}: {_how(first)}."
        yield _before(equal, inexact or first.changed)
        yield from ["The node itself changed."] * first.changed
        if beyond is not None and beyond is not first:
            yield f"Beyond {rounded} first {_named(beyond)}: {_how(beyond)}."
    elif changes:
        most = max(changes, key=lambda each: each.relative or 0.0)
        yield f"{count_text(ops, 'op')} agree up to {rounded}."
        yield f"The largest difference: {_named(most)}, {_how(most)}."
    else:
        yield f"{count_text(ops, 'op')} write the same, bit for bit."
    if shown and beyond is None:
        yield f"No difference is beyond {rounded}."
    if inexact:
        yield f"Bits are not compared: {inexact}."


def _before(equal: int, other_cause: object) -> str:
    text = f"The {equal:,} ops before it write the same"
    if equal < 2:
        text = "The op before it writes the same" if equal else "No op is before it"
    if other_cause:
        return f"{text}."
    return f"{text}: a parameter or an input differs, or it adds in any order, by atomics."


def _named(change: OpDifference) -> str:
    line = f" at {change.line}" if change.line else ""
    return f"node {change.b} of {change.graph}, {change.op}{line} in {change.module}"


def _how(change: OpDifference) -> str:
    """``out float32[8,64], largest 5.542 → 5.561, norm 120.1 → 121.3 (0.34%)``."""
    before, after = change.values_a, change.values_b
    rows = [
        (name, text(getattr(before, field)), text(getattr(after, field)))
        for name, field, text in _SHOWN
    ]
    figures = [f"{name} {x} → {y}" for name, x, y in rows if x != y]
    types = before.type if before.type == after.type else f"{before.type} → {after.type}"
    share = "" if change.relative is None else f" ({change.relative:.2g})"
    return f"{after.name} {types}, {', '.join(figures) or 'in digits that are not shown'}{share}"


_SHOWN = (
    ("least", "minimum", figure_text), ("largest", "maximum", figure_text),
    ("mean", "mean", figure_text), ("norm", "norm", figure_text),
    ("NaN", "nans", "{:,}".format), ("infinite", "infinities", "{:,}".format),
)  # fmt: skip
