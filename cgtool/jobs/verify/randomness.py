"""Random numbers: replays that repeat them, and replays that draw different ones than eager.

Both sides start from the same random state. If they still differ (a fused kernel takes other
numbers of the same generator), that is correct if both draw from the same distribution. If replays
with different seeds have the same results and eager runs do not, the seed is frozen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set
from statistics import mean, variance

import torch

from cgtool.findings import code
from cgtool.jobs.verify.differences import dense_numbers
from cgtool.jobs.verify.evidence import Key, Results, Trial
from cgtool.jobs.verify.runner import TrialRunner, eager_iteration, results_of
from cgtool.model.finding import Finding
from cgtool.observe.raw_tensors import copies, raw, unchanged

RNG_FROZEN_SEED = code("rng-frozen-seed")

SEEDS = 12
_MORE_SEEDS = 48
"""So many decide where ``SEEDS`` show a difference: of the hundreds of means that are compared, a
few are far apart by chance."""
_SIGMAS = 6.0
"""Means that differ by more than this many standard errors are different."""
_ROUNDINGS = 64
"""Relative to the mean magnitude. A gradient whose true mean is zero has a mean made of rounding,
which other kernels shift."""
Moments = tuple[float, float]
"""Mean and mean magnitude of a tensor."""


def _draws(
    runner: TrialRunner, trial: Trial, seeds: range, *, replayed: bool = False
) -> Iterator[Results]:
    """Results of one eager iteration, or of one replay, for each seed. The next one may overwrite
    them."""
    for seed in seeds:
        (runner.begin_replay if replayed else runner.begin_eager)(trial)
        torch.manual_seed(seed)
        if replayed:
            runner.replay_once(trial)
            yield results_of(runner.target.session)
        else:
            results = eager_iteration(runner.target)
            runner.target.device.synchronize()
            yield results


def _varying(draws: Iterator[Results]) -> dict[Key, bool]:
    """The results of the first draw, and whether another one has other values."""
    first = copies(next(draws))
    varies = dict.fromkeys(first, False)
    for results in draws:
        for key in first.keys() & results.keys():
            varies[key] = varies[key] or not unchanged(first[key], results[key])
    return varies


def is_random(runner: TrialRunner, trial: Trial) -> bool:
    """Eager results depend on the seed."""
    return any(_varying(_draws(runner, trial, range(2))).values())


def frozen(runner: TrialRunner, trial: Trial) -> list[Finding]:
    """A finding where eager depends on the seed, and replays are equal to the last bit."""
    eager = _varying(_draws(runner, trial, range(SEEDS)))
    replays = _varying(_draws(runner, trial, range(SEEDS), replayed=True))
    names = [
        name
        for (kind, name), varies in eager.items()
        if varies and not replays.get((kind, name), False)
    ]
    return [
        Finding(
            RNG_FROZEN_SEED,
            f"{SEEDS} eager runs with different seeds have different values in {name}, {SEEDS} "
            "replays have the same: the graph repeats the random numbers of the capture",
            phase="replay",
        )
        for name in names[:1]
    ]


def alike(runner: TrialRunner, trial: Trial, keys: Set[Key]) -> int:
    """Over how many seeds all of these results are random in replay and eager, with equal means and
    mean magnitudes; 0 if they are not."""
    eager: dict[Key, list[Moments]] = {key: [] for key in keys}
    replays: dict[Key, list[Moments]] = {key: [] for key in keys}
    seeds = range(SEEDS)
    while True:
        for moments, replayed in ((eager, False), (replays, True)):
            for results in _draws(runner, trial, seeds, replayed=replayed):
                for key in keys & results.keys():
                    moments[key].append(_moments(results[key]))
        if not all(_vary(moments[key], seeds.stop) for moments in (eager, replays) for key in keys):
            return 0
        if all(_same_means(eager[key], replays[key]) for key in keys):
            return seeds.stop
        if seeds.stop == _MORE_SEEDS:
            return 0
        seeds = range(SEEDS, _MORE_SEEDS)


def _moments(tensor: torch.Tensor) -> Moments:
    with raw():
        values = dense_numbers(tensor)
        return float(values.mean()), float(values.abs().mean())


def _vary(moments: Sequence[Moments], count: int) -> bool:
    """Whether each of so many draws has the result, and they differ."""
    return len(moments) == count and len(set(moments)) > 1


def _same_means(eager: Sequence[Moments], replays: Sequence[Moments]) -> bool:
    rounding = _ROUNDINGS * torch.finfo(torch.float32).eps * mean(size for _, size in eager)
    return all(
        abs(mean(left) - mean(right))
        <= _SIGMAS * math.sqrt((variance(left) + variance(right)) / len(left)) + rounding
        for left, right in zip(zip(*eager, strict=True), zip(*replays, strict=True), strict=True)
    )
