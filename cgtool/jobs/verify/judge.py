"""The verdict on a trial: which tensors of its replays are equal to those of eager.

Where eager is deterministic and a replay runs the same kernels, equal means equal to the last bit.
A replay that runs other kernels rounds differently. It is judged as ``torch._dynamo.utils.same``
judges: by its distance from a float64 run, which may be a few times that of eager. Where there is
no float64 run, the difference between eager runs and the precision of the type count.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from statistics import median

import torch
from msgspec.structs import replace

from cgtool.jobs.verify.differences import (
    SLACK,
    Size,
    is_rounded,
    magnitude,
    mismatch,
    nearest,
    size_of,
    spread,
)
from cgtool.jobs.verify.evidence import Evidence, Key
from cgtool.model.finding import Comparison

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
"""Two roundings of float32: the least relative error that an entry is taken to have."""
_TOO_NOISY = 0.1
"""Where eager runs differ by more than this part of the group's largest value, equality proves
nothing."""


@dataclass(frozen=True)
class Compared:
    """A tensor of one iteration."""

    iteration: int
    """Counted from 0."""
    comparison: Comparison
    too_noisy: bool = False
    """True if it is equal, but eager runs differ so much that this proves nothing."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on one trial, and its evidence."""

    evidence: Evidence
    compared: tuple[Compared, ...]
    only_eager: frozenset[str]
    """State that eager iterations create and that cannot be reached after replays."""

    @property
    def differing(self) -> list[Compared]:
        return [each for each in self.compared if not each.comparison.equal]

    def kept_by_each_call(self) -> list[str]:
        """State that eager iterations create, if each of them adds a name: a memo does so only for
        a key that it does not have."""
        names = [{name for _, name in each.after} for each in self.evidence.eager[0].iterations]
        is_each = all(after - before for before, after in itertools.pairwise(names))
        return sorted(self.only_eager) if is_each else []

    @property
    def noisy(self) -> bool:
        """True if eager runs differ from each other."""
        return any(each.comparison.noise != 0.0 for each in self.compared)


def judge(evidence: Evidence) -> Verdict:
    """Compare every tensor of every iteration."""
    compared: list[Compared] = []
    only_eager: set[str] = set()
    for number in range(evidence.trial.iterations):
        trial = evidence.trial.iteration(number)
        *eager, replay = (run.iterations[number] for run in (*evidence.eager, evidence.replay))
        changed = dict.fromkeys(key for run in (*eager, replay) for key in run.changed())
        if evidence.facts.frozen:
            # What the host changes is not noise: the first run has the values of the capture.
            eager = eager[:1]
        expected = {
            key: [run.after[key] for run in eager if key in run.after]
            for key in changed
            if key not in evidence.facts.counts
        }
        exact = {} if evidence.float64 is None else evidence.float64.iterations[number].changed()
        precision = cache(partial(Precision, expected, exact, eager[0].before.values()))
        for key, values in expected.items():
            if key in evidence.facts.random | evidence.facts.unwritten:
                continue
            kind, name = key
            replayed = replay.after.get(key)
            if values and replayed is not None:
                comparison, too_noisy = _compare(
                    key, values, replayed, precision, evidence.may_round
                )
                comparison = replace(comparison, trial=trial)
                compared.append(Compared(number, comparison, too_noisy))
            elif kind != "state":
                missing = Comparison(
                    name, kind, trial, equal=False, tolerance=0.0, noise=0.0, mismatch="missing"
                )
                compared.append(Compared(number, missing))
            elif replayed is None:
                only_eager.add(name)
    return Verdict(evidence, tuple(compared), frozenset(only_eager))


def _tolerance(dtype: torch.dtype) -> float:
    """Relative to the scale, without a float64 run: those of PyTorch's harness
    (benchmarks/dynamo/common.py)."""
    return 1e-2 if dtype in (torch.float16, torch.bfloat16) else 1e-4


def _group(key: Key) -> str:
    """Tensors of one group are of one scale: all gradients, all parameters, one kind of optimizer
    state; any other tensor is a group of its own."""
    kind, name = key
    if kind == "gradient" or "gradient of " in name:
        return "gradients"
    of_optimizer, of, _ = name.partition(" of ")
    if of:
        return of_optimizer
    return "parameters" if "parameter " in name else f"{kind} {name}"


class Precision:
    """How precise a replay of one iteration must be if it rounds differently.

    Its distance from float64, root mean square and largest, may be ``CLOSE`` times that of eager,
    of this tensor or, relative to its size, of the median tensor: a single number can be right by
    chance. Below one rounding of the group's scale nothing is judged: a gradient whose true value
    is zero is made of the rounding of the others.
    """

    def __init__(
        self,
        eager: Mapping[Key, Sequence[torch.Tensor]],
        exact: Mapping[Key, torch.Tensor],
        start: Iterable[torch.Tensor],
    ) -> None:
        """``start``: inputs, parameters and whatever else an iteration starts from."""
        self.exact = exact
        self.start = start
        self.scales: dict[str, Size] = defaultdict(lambda: Size(0.0, 0.0))
        self.errors: dict[Key, Size] = {}
        sizes: dict[Key, Size] = {}
        for key, runs in eager.items():
            if not runs or not is_rounded(runs[0]):
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
        """The largest of all numbers that an iteration reads or returns."""
        numbers = [magnitude(tensor) for tensor in self.start if is_rounded(tensor)]
        return max([*numbers, *(scale.largest for scale in self.scales.values())], default=0.0)

    def too_noisy(self, key: Key, eager: torch.Tensor, noise: float | None) -> bool:
        """Eager runs differ so much that equality proves nothing, and by more than rounding
        explains: after a cancellation, the rounding of much larger numbers is left."""
        if noise is None:
            return False
        if not is_rounded(eager):
            return noise > _TOO_NOISY * magnitude(eager)
        if noise <= _TOO_NOISY * self.scales[_group(key)].largest:
            return False
        return noise > _ROUNDINGS * torch.finfo(eager.dtype).eps * self.largest

    def allowed(self, key: Key, dtype: torch.dtype) -> Size:
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
    key: Key,
    expected: list[torch.Tensor],
    replayed: torch.Tensor,
    precision_of: Callable[[], Precision],
    may_round: bool,
) -> tuple[Comparison, bool]:
    """The comparison, without its trial, and whether eager is too noisy for it."""
    noise, distance = spread(expected), nearest(expected, replayed)
    tolerance = SLACK * (noise.largest or 0.0)
    comparison = Comparison(
        name=key[1],
        kind=key[0],
        trial="",
        equal=distance.exact or (distance.largest is not None and distance.largest <= tolerance),
        exact=distance.exact,
        largest=distance.largest,
        relative=0.0 if distance.exact else None,
        tolerance=tolerance,
        noise=noise.largest,
        mismatch=mismatch(replayed, expected[0]),
    )
    if distance.exact or distance.largest is None:
        return comparison, False
    if scale := magnitude(expected[0]):
        comparison = replace(comparison, relative=distance.largest / scale)
    precision = precision_of()
    if comparison.equal or not may_round or not is_rounded(replayed):
        return comparison, comparison.equal and precision.too_noisy(key, expected[0], noise.largest)
    dtype = replayed.dtype
    allowed, eager_error = precision.allowed(key, dtype), precision.errors.get(key)
    error = size_of(replayed, precision.exact.get(key, expected[0]))
    # The measure that decides: the root mean square if it is too large, else the largest.
    measure = int(error.rms <= allowed.rms)
    comparison = replace(
        comparison,
        equal=error[measure] <= allowed[measure],
        tolerance=allowed[measure],
        error=None if eager_error is None else error[measure],
        eager_error=None if eager_error is None else eager_error[measure],
    )
    # Float64 says nothing then, so only a replay that is practically equal to eager counts as
    # equal.
    unproven = comparison.equal and eager_error is not None and key not in precision.trusted
    return comparison, unproven and not any(
        size_of(replayed, run).rms <= _tolerance(dtype) * size_of(run).rms for run in expected
    )
