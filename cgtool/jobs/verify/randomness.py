"""Random numbers: replays that repeat them, and replays that draw different ones than eager.

Both sides start from the same random state. If they still differ (a fused kernel takes other
numbers of the same generator), that is correct if both draw from the same distribution. If replays
with different seeds have the same results and eager runs do not, the seed is frozen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from statistics import mean, variance

import torch

from cgtool.findings import code
from cgtool.jobs.verify.differences import dense_numbers
from cgtool.jobs.verify.evidence import Key, Results, Trial
from cgtool.jobs.verify.raw_tensors import copies, raw, unchanged
from cgtool.jobs.verify.runner import TrialRunner, eager_iteration, results_of
from cgtool.model.finding import Finding

RNG_FROZEN_SEED = code("rng-frozen-seed")

SEEDS = 12
_SIGMAS = 6.0
"""Means that differ by more than this many standard errors are different."""


def _draws(
    runner: TrialRunner, trial: Trial, *, replayed: bool = False, seeds: int = SEEDS
) -> list[Results]:
    """Results of one eager iteration, or of one replay, for each seed."""
    draws = []
    for seed in range(seeds):
        (runner.begin_replay if replayed else runner.begin_eager)(trial)
        torch.manual_seed(seed)
        if replayed:
            runner.replay_once(trial)
            results = results_of(runner.target.session)
        else:
            results = eager_iteration(runner.target)
            runner.target.device.synchronize()
        draws.append(copies(results))
    return draws


def _varies(runs: list[Results], key: Key) -> bool:
    return any(key in run and not unchanged(runs[0][key], run[key]) for run in runs[1:])


def is_random(runner: TrialRunner, trial: Trial) -> bool:
    """Eager results depend on the seed."""
    runs = _draws(runner, trial, seeds=2)
    return any(_varies(runs, key) for key in runs[0])


def frozen(runner: TrialRunner, trial: Trial) -> list[Finding]:
    """A finding where eager depends on the seed, and replays are equal to the last bit."""
    eager, replays = _draws(runner, trial), _draws(runner, trial, replayed=True)
    names = [
        name
        for kind, name in eager[0]
        if _varies(eager, (kind, name)) and not _varies(replays, (kind, name))
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


def alike(runner: TrialRunner, trial: Trial, keys: Collection[Key]) -> bool:
    """True when all of these results are random in replay and eager, with equal means and mean
    magnitudes."""
    eager, replays = _draws(runner, trial), _draws(runner, trial, replayed=True)
    return all(
        key in eager[0]
        and key in replays[0]
        and _varies(eager, key)
        and _varies(replays, key)
        and _same_mean(eager, replays, key, torch.Tensor.double)
        and _same_mean(eager, replays, key, torch.Tensor.abs)
        for key in keys
    )


def _same_mean(
    eager: list[Results],
    replays: list[Results],
    key: Key,
    of: Callable[[torch.Tensor], torch.Tensor],
) -> bool:
    with raw():
        eager_means = [float(of(dense_numbers(values[key])).mean()) for values in eager]
        replay_means = [float(of(dense_numbers(values[key])).mean()) for values in replays]
    error = math.sqrt((variance(eager_means) + variance(replay_means)) / SEEDS)
    return abs(mean(eager_means) - mean(replay_means)) <= _SIGMAS * error
