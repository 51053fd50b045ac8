"""Comparison of replays with eager runs, tensor by tensor, and the tolerance.

Where eager is deterministic and a replay runs the same kernels, equal means equal to the last bit.
A replay that runs other kernels rounds differently. It is judged as ``torch._dynamo.utils.same``
judges: by its distance from a float64 run, which may be a few times that of eager. Where there is
no float64 run, the difference between eager runs and the precision of the type count.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import combinations
from statistics import median
from typing import NamedTuple

import msgspec
import torch

from cgtool.jobs.verify.runs import Results, Run, Trial
from cgtool.jobs.verify.state import arithmetic, dense, raw, same_bits
from cgtool.model.finding import Comparison

SLACK = 2.0
"""A replay may differ from the nearest eager run by this many times the difference between eager
runs: the largest difference of a few runs is not the largest possible."""
CLOSE = 4.0
"""A replay may be this many times as far from float64 as eager is."""
_TRUSTED = 0.1
"""If the relative error of eager is above this, the float64 run does not judge a replay: ``CLOSE``
times a larger error would allow a replay of zeros. Eager is so far away if the float64 run missed
what a kernel outside PyTorch wrote, or if the problem is ill-conditioned."""
_ROUNDINGS = 64
"""Relative to the largest number of an iteration: how much a sum, whatever its own size, may differ
because atomics add in another order."""
_FLOAT64 = 1e-12
"""Relative differences that float64 cannot judge, because it rounds too."""
_TWO_ROUNDINGS = 2.0**-22
"""Of float32: the least relative error that an entry is taken to have."""
_CHUNK = 1 << 24
_TOP = 1 << 63


class Difference(NamedTuple):
    """The difference between two tensors."""

    largest: int | float | None
    """Largest absolute difference, of integers a Python int; None when one has a NaN or an infinity
    where the other does not."""
    exact: bool
    """True if no bit differs."""


EQUAL = Difference(0.0, True)


def difference(left: torch.Tensor, right: torch.Tensor) -> Difference:
    """NaN equals NaN, an infinity equals itself."""
    with raw():
        if left.is_quantized and right.is_quantized:
            stored = difference(left.int_repr(), right.int_repr())
            values = difference(left.dequantize(), right.dequantize())
            return Difference(values.largest, stored.exact and values.exact)
        right = right.to(left.device)
    with arithmetic():
        left, right = dense(left), dense(right)
        if left.shape != right.shape or left.dtype != right.dtype:
            return Difference(None, False)
        if same_bits(left, right):
            return EQUAL
        largest: int | float = 0
        for part, against in zip(_chunks(left), _chunks(right), strict=True):
            if not _is_rounded(left):
                largest = max(largest, _largest_of_integers(part, against))
                continue
            a, b = _wide(part), _wide(against)
            if bool((a.isnan() != b.isnan()).any()):
                return Difference(None, False)
            apart = torch.where((a == b) | a.isnan(), 0.0, (a - b).abs())
            largest = max(largest, float(apart.max()))
        return Difference(largest if math.isfinite(largest) else None, False)


def _chunks(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    parts: tuple[torch.Tensor, ...] = tensor.reshape(-1).split(_CHUNK)
    return parts


def _is_rounded(tensor: torch.Tensor) -> bool:
    """True for types of real and complex numbers; the others are compared exactly."""
    # Two numbers in each byte: no kernel reads them.
    packed = tensor.dtype == getattr(torch, "float4_e2m1fn_x2", None)
    return (tensor.is_floating_point() or tensor.is_complex()) and not packed


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _largest_of_integers(left: torch.Tensor, right: torch.Tensor) -> int:
    if left.dtype in (torch.int64, torch.uint64):
        flip = -_TOP if left.dtype == torch.uint64 else 0
        a, b = left.view(torch.int64) ^ flip, right.view(torch.int64) ^ flip
    elif left.is_floating_point():
        return int(not same_bits(left, right))
    else:
        a, b = left.to(torch.int64), right.to(torch.int64)
    # Modulo 2**64; shifted by half of that, so that int64 orders it as unsigned.
    apart = (torch.maximum(a, b) - torch.minimum(a, b)) ^ -_TOP
    return int(apart.max()) + _TOP


def _tolerance(dtype: torch.dtype) -> float:
    """Relative to the scale, without a float64 run: those of PyTorch's harness
    (benchmarks/dynamo/common.py)."""
    return 1e-2 if dtype in (torch.float16, torch.bfloat16) else 1e-4


class Size(NamedTuple):
    """Of finite numbers: root mean square, and the largest magnitude."""

    rms: float
    largest: float


def size_of(tensor: torch.Tensor, exact: torch.Tensor | None = None) -> Size:
    """Of a tensor's values, or of their differences from ``exact``; zeros if there are none."""
    with raw():
        exact = exact if exact is None else exact.to(tensor.device)
    with arithmetic():
        values = dense(tensor)
        if not _is_rounded(values):
            values = values.to(torch.float64)
        others = None if exact is None else _chunks(dense(exact))
        squares, count, largest = 0.0, 0, 0.0
        for index, part in enumerate(_chunks(values)):
            wide = _wide(part)
            if others is not None:
                wide = wide - _wide(others[index])
            finite = wide[wide.isfinite()].abs()
            if finite.numel():
                squares += float(finite.square().sum())
                count += finite.numel()
                largest = max(largest, float(finite.max()))
        return Size(math.sqrt(squares / count) if count else 0.0, largest)


def magnitude(tensor: torch.Tensor) -> float:
    """Largest finite absolute value; 0 for none."""
    return size_of(tensor).largest


def spread(runs: Sequence[torch.Tensor]) -> Difference:
    """The largest difference between any two runs."""
    largest: int | float = 0.0
    exact = True
    for run, other in combinations(runs, 2):
        distance = difference(run, other)
        if distance.largest is None:
            return distance
        largest, exact = max(largest, distance.largest), exact and distance.exact
    return Difference(largest, exact)


def nearest(runs: Sequence[torch.Tensor], tensor: torch.Tensor) -> Difference:
    """The smallest difference to any run."""
    distances = [difference(run, tensor) for run in runs]
    return min(
        distances,
        key=lambda distance: (
            not distance.exact,
            math.inf if distance.largest is None else distance.largest,
        ),
    )


def dense_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """As float64; the real part of complex numbers."""
    plain = dense(tensor)
    return (plain.real if plain.is_complex() else plain).to(torch.float64)


TOO_NOISY = 0.1
"""Where eager runs differ by more than this part of the group's largest value, equality proves
nothing."""


class Compared(NamedTuple):
    """A tensor of one iteration."""

    iteration: int
    """Counted from 0."""
    comparison: Comparison
    too_noisy: bool = False
    """True if it is equal, but eager runs differ so much that this proves nothing."""


@dataclass
class TrialResult:
    """A trial with its runs and comparisons."""

    trial: Trial
    eager: list[Run]
    replay: Run
    compared: list[Compared] = field(default_factory=list)
    only_eager: set[str] = field(default_factory=set)
    """State that eager iterations create and that cannot be reached after replays."""

    @property
    def comparisons(self) -> list[Comparison]:
        return [each.comparison for each in self.compared]

    @property
    def differing(self) -> list[Compared]:
        return [each for each in self.compared if not each.comparison.equal]

    @property
    def noisy(self) -> bool:
        """True if eager runs differ from each other."""
        return any(comparison.noise != 0.0 for comparison in self.comparisons)

    def accepting(self, keys: set[tuple[str, str]]) -> TrialResult:
        """The same result without these (kind, name), which are reported elsewhere."""
        kept = [
            each
            for each in self.compared
            if (each.comparison.kind, each.comparison.name) not in keys
        ]
        return replace(self, compared=kept)


Values = dict[tuple[str, str], list[torch.Tensor]]
"""Of each run, by (kind, name)."""


def compare_runs(
    trial: Trial,
    eager: list[Run],
    replay: Run,
    base: Sequence[Mapping[str, torch.Tensor]],
    *,
    noise_counts: bool,
    rounds: bool,
    reference: Run | None,
) -> TrialResult:
    """Compare every tensor of every iteration.

    ``base``: for each iteration, state by name, of what no run has changed. ``noise_counts``: eager
    runs differ by chance, not because the host changes a number. ``rounds``: the replay may round
    differently, because it runs other kernels. ``reference``: a float64 run, to judge that by.
    """
    result = TrialResult(trial, eager, replay)

    def values_of(runs: Sequence[Run], number: int, key: tuple[str, str]) -> list[torch.Tensor]:
        values = []
        for run in runs:
            value = run.values[number].get(key)
            if value is None and key[0] == "state" and key[1] in run.names:
                # A run returns only the state that it changed.
                value = base[number].get(key[1])
            if value is not None:
                values.append(value)
        return values

    for number in range(trial.iterations):
        keys = dict.fromkeys(key for run in (*eager, replay) for key in run.values[number])
        expected = {
            key: values_of(eager[: None if noise_counts else 1], number, key) for key in keys
        }
        exact = {} if reference is None else reference.values[number]
        judge = cache(partial(_Judge, expected, exact, base[number].values()))
        for key in keys:
            kind, name = key
            replayed = values_of([replay], number, key)
            if expected[key] and replayed:
                result.compared.append(
                    _compare(key, trial, number, expected[key], replayed[0], judge, rounds)
                )
            elif kind != "state":
                comparison = Comparison(
                    name, kind, trial.iteration(number), equal=False, tolerance=0.0, noise=0.0
                )
                result.compared.append(Compared(number, comparison))
            elif not replayed:
                result.only_eager.add(name)
    return result


def _group(key: tuple[str, str]) -> str:
    """Tensors of one group are of one scale: all gradients, all parameters, one kind of optimizer
    state; any other tensor is a group of its own."""
    kind, name = key
    if kind == "gradient" or "gradient of " in name:
        return "gradients"
    of_optimizer, of, _ = name.partition(" of ")
    if of:
        return of_optimizer
    return "parameters" if "parameter " in name else f"{kind} {name}"


class _Judge:
    """Whether a replay that rounds differently is equal, in one iteration.

    Its distance from float64, root mean square and largest, may be ``CLOSE`` times that of eager,
    of this tensor or, relative to its size, of the median tensor: a single number can be right by
    chance. Below one rounding of the group's scale nothing is judged: a gradient whose true value
    is zero is made of the rounding of the others.
    """

    def __init__(self, eager: Values, exact: Results, start: Iterable[torch.Tensor] = ()) -> None:
        """``start``: inputs, parameters and whatever else an iteration starts from."""
        self.exact = exact
        self.start = start
        self.scales: dict[str, Size] = defaultdict(lambda: Size(0.0, 0.0))
        self.errors: dict[tuple[str, str], Size] = {}
        sizes: dict[tuple[str, str], Size] = {}
        for key, runs in eager.items():
            if not runs or not _is_rounded(runs[0]):
                continue
            own = sizes[key] = size_of(exact.get(key, runs[0]))
            self.scales[_group(key)] = Size(*map(max, self.scales[_group(key)], own))
            if key in exact:
                errors = [size_of(run, exact[key]) for run in runs]
                self.errors[key] = Size(*map(max, zip(*errors, strict=True)))
        self.trusted = set()
        for key, error in self.errors.items():
            rounding = _ROUNDINGS * torch.finfo(eager[key][0].dtype).eps
            # A gradient whose true value is zero is made of the rounding of the others.
            least = min(rounding, _TRUSTED / 2)
            most = zip(sizes[key], self.scales[_group(key)], strict=True)
            if all(
                part <= _TRUSTED * size + least * scale
                for part, (size, scale) in zip(error, most, strict=True)
            ):
                self.trusted.add(key)
        self.sizes = sizes
        relative = [
            (self.errors[key].rms / sizes[key].rms, self.errors[key].largest / sizes[key].largest)
            for key in self.trusted
            if sizes[key].rms
        ]
        medians = map(median, zip(*relative, strict=True)) if relative else (0.0, 0.0)
        self.typical = Size(*(min(max(each, _TWO_ROUNDINGS), _TRUSTED) for each in medians))

    @cached_property
    def largest(self) -> float:
        """Of all numbers that an iteration reads or returns."""
        numbers = [magnitude(tensor) for tensor in self.start if _is_rounded(tensor)]
        return max([*numbers, *(scale.largest for scale in self.scales.values())], default=0.0)

    def too_noisy(self, key: tuple[str, str], eager: torch.Tensor, noise: float | None) -> bool:
        """Eager runs differ so much that equality proves nothing, and by more than rounding
        explains: after a cancellation, the rounding of much larger numbers is left."""
        if noise is None:
            return False
        if not _is_rounded(eager):
            return noise > TOO_NOISY * magnitude(eager)
        if noise <= TOO_NOISY * self.scales[_group(key)].largest:
            return False
        return noise > _ROUNDINGS * torch.finfo(eager.dtype).eps * self.largest

    def allowed(self, key: tuple[str, str], dtype: torch.dtype) -> Size:
        """How far from float64 a replay may be; without float64 values, how far from eager."""
        scales = self.scales[_group(key)]
        if key not in self.errors:
            return Size(*(_tolerance(dtype) * scale for scale in scales))
        rounding = max(torch.finfo(dtype).eps, _FLOAT64)
        return Size(
            *(
                CLOSE * (error + typical * size) + rounding * scale
                for error, typical, size, scale in zip(
                    self.errors[key], self.typical, self.sizes[key], scales, strict=True
                )
            )
        )


def _compare(
    key: tuple[str, str],
    trial: Trial,
    number: int,
    expected: list[torch.Tensor],
    replayed: torch.Tensor,
    judge_of: Callable[[], _Judge],
    rounds: bool,
) -> Compared:
    noise, distance = spread(expected), nearest(expected, replayed)
    tolerance = SLACK * (noise.largest or 0.0)
    equal = distance.exact or (distance.largest is not None and distance.largest <= tolerance)
    comparison = Comparison(
        name=key[1],
        kind=key[0],
        trial=trial.iteration(number),
        equal=equal,
        exact=distance.exact,
        largest=distance.largest,
        relative=0.0 if distance.exact else None,
        tolerance=tolerance,
        noise=noise.largest,
    )
    if distance.exact or distance.largest is None:
        return Compared(number, comparison)
    if scale := magnitude(expected[0]):
        comparison = msgspec.structs.replace(comparison, relative=distance.largest / scale)
    judge = judge_of()
    if equal or not rounds or not _is_rounded(replayed):
        too_noisy = equal and judge.too_noisy(key, expected[0], noise.largest)
        return Compared(number, comparison, too_noisy)
    dtype = replayed.dtype
    allowed, eager_error = judge.allowed(key, dtype), judge.errors.get(key)
    error = size_of(replayed, judge.exact.get(key, expected[0]))
    # The measure that decides: the root mean square if it is too large, else the largest.
    measure = int(error.rms <= allowed.rms)
    comparison = msgspec.structs.replace(
        comparison,
        equal=error[measure] <= allowed[measure],
        tolerance=allowed[measure],
        error=None if eager_error is None else error[measure],
        eager_error=None if eager_error is None else eager_error[measure],
    )
    # Float64 says nothing then, so only a replay that is practically equal to eager counts as
    # equal.
    unproven = comparison.equal and eager_error is not None and key not in judge.trusted
    too_noisy = unproven and not any(
        size_of(replayed, run).rms <= _tolerance(dtype) * size_of(run).rms for run in expected
    )
    return Compared(number, comparison, too_noisy)
