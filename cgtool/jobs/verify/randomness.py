"""Random numbers: replays that repeat theirs, and replays that draw others than eager.

Both sides start from the same random state. If they still differ (a fused kernel takes other
numbers of the same generator), that is correct if both draw from the same distribution. If replays
with different seeds have the same results and eager runs do not, the seed is frozen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch

from cgtool.devices.device import VerifyTarget
from cgtool.findings.registry import code
from cgtool.jobs.verify.compare import dense_numbers
from cgtool.jobs.verify.runs import (
    Results,
    Trial,
    TrialRunner,
    eager_iteration,
    results_of,
)
from cgtool.jobs.verify.state import raw, unchanged
from cgtool.model.finding import Finding

RNG_FROZEN_SEED = code("rng-frozen-seed")

SEEDS = 12
_SIGMAS = 6.0
"""Means that differ by more than this many standard errors are different."""


def _drawn(
    runner: TrialRunner, begin: Callable[[], None], once: Callable[[], Results], seeds: int = SEEDS
) -> list[Results]:
    draws = []
    for seed in range(seeds):
        begin()
        torch.manual_seed(seed)
        results = once()
        runner.target.device.synchronize()
        with raw():
            draws.append({key: tensor.detach().clone() for key, tensor in results.items()})
    return draws


def draws(
    target: VerifyTarget, runner: TrialRunner, trial: Trial
) -> tuple[list[Results], list[Results]]:
    """Results of one eager iteration and of one replay for each seed."""

    def replay() -> Results:
        runner.replay_once(trial)
        return results_of(target.session)

    return (
        _drawn(runner, lambda: runner.begin_eager(trial), lambda: eager_iteration(target)),
        _drawn(runner, lambda: runner.begin_replay(trial), replay),
    )


def _varies(runs: list[Results], key: tuple[str, str]) -> bool:
    return any(key in run and not unchanged(runs[0][key], run[key]) for run in runs[1:])


def is_random(target: VerifyTarget, runner: TrialRunner, trial: Trial) -> bool:
    """Eager results depend on the seed."""
    runs = _drawn(runner, lambda: runner.begin_eager(trial), lambda: eager_iteration(target), 2)
    return any(_varies(runs, key) for key in runs[0])


def frozen(target: VerifyTarget, runner: TrialRunner, trial: Trial) -> Iterator[Finding]:
    """A finding where eager depends on the seed, and replays are equal to the last bit."""
    eager, replays = draws(target, runner, trial)
    names = [
        name
        for kind, name in eager[0]
        if _varies(eager, (kind, name)) and not _varies(replays, (kind, name))
    ]
    if names:
        yield Finding(
            RNG_FROZEN_SEED,
            f"{SEEDS} eager runs with different seeds have different values in {names[0]}, {SEEDS} "
            "replays have the same: the graph repeats the random numbers of the capture",
            phase="replay",
        )


def alike(
    target: VerifyTarget, runner: TrialRunner, trial: Trial, keys: set[tuple[str, str]]
) -> bool:
    """True when all of these results are random in replay and eager, with equal means and mean
    magnitudes."""
    eager, replays = draws(target, runner, trial)
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
    key: tuple[str, str],
    of: Callable[[torch.Tensor], torch.Tensor],
) -> bool:
    with raw():
        eager_means = [float(of(dense_numbers(values[key])).mean()) for values in eager]
        replay_means = [float(of(dense_numbers(values[key])).mean()) for values in replays]
    error = math.sqrt((_variance(eager_means) + _variance(replay_means)) / SEEDS)
    apart = abs(sum(eager_means) / SEEDS - sum(replay_means) / SEEDS)
    return apart <= _SIGMAS * error


def _variance(values: list[float]) -> float:
    middle = sum(values) / len(values)
    return sum((value - middle) ** 2 for value in values) / (len(values) - 1)
