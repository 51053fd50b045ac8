"""The first op at which replay and eager differ, and the first that produces a NaN."""

from __future__ import annotations

from functools import partial

import torch

from cgtool.detectors.reporting import at_call
from cgtool.devices.device import OpResults, ResultRecorder
from cgtool.jobs.verify.differences import difference, magnitude
from cgtool.jobs.verify.evidence import Trial
from cgtool.jobs.verify.raw_tensors import is_finite
from cgtool.jobs.verify.runner import TrialRunner, observed_iteration
from cgtool.model.capture import Frames
from cgtool.model.finding import Code, Finding
from cgtool.observe.effects import UNINITIALIZED
from cgtool.observe.ops import OpCall, Record

_TRIES = 3
"""Runs that are compared with the first, because two runs can have the same noise."""


def _described(call: OpCall, number: int, record: Record) -> str:
    """For a message: name, number, line, module, and for an op of a backward the forward line."""
    place = at_call(Finding(Code(""), ""), call, record)
    text = f"{call.name} (op {number} of the capture)"
    if place.frames:
        text += f", {_line_of(place.frames)}"
    if place.module:
        text += f", module {place.module}"
    if place.forward:
        text += f", forward {_line_of(place.forward)}"
    return text


def _line_of(frames: Frames) -> str:
    """``model.py:12`` of the innermost frame."""
    return f"{frames[0].file}:{frames[0].line}"


def _eager(runner: TrialRunner, trial: Trial, iteration: int) -> ResultRecorder:
    """The results of every op of an eager iteration (from 0)."""
    runner.begin_eager(trial, iteration)
    make_recorder = partial(ResultRecorder, device=runner.target.device)
    return observed_iteration(runner.target, make_recorder)[1]


def at_first_noisy(finding: Finding, runner: TrialRunner, trial: Trial) -> Finding:
    """The finding at the first op whose results differ between eager runs from the same state."""
    first = _eager(runner, trial, 0)
    for _ in range(_TRIES):
        second = _eager(runner, trial, 0)
        for (call, values), (_, others) in zip(first.results, second.results, strict=False):
            if not call.name.startswith(UNINITIALIZED) and _apart(values, others, others, 0.0):
                return at_call(finding, call, first.record)
    return finding


class Divergence:
    """A second capture with every op's results kept, and eager iterations to compare it with."""

    def __init__(self, runner: TrialRunner) -> None:
        self.runner = runner
        runner.begin_eager(Trial("probe"))
        self.probe = runner.target.probe()

    def _replayed(self, trial: Trial, iteration: int) -> OpResults:
        values = self.runner.begin_replay(trial)
        for number in range(iteration + 1):
            if number:
                values = self.runner.write_inputs(trial, number, values)
            results = self.probe.replay()
        self.runner.target.device.synchronize()
        return results

    def find(self, trial: Trial, iteration: int, relative: float) -> tuple[str | None, str]:
        """The first op of an iteration (from 0) whose results differ, and how; None if every op has
        equal results.

        ``relative``: the largest difference, over the largest magnitude, that counts as noise.
        """
        replayed = self._replayed(trial, iteration)
        eager = _eager(self.runner, trial, iteration)
        again = _eager(self.runner, trial, iteration).results if relative else eager.results
        for number, ((call, values), (eager_call, expected)) in enumerate(
            zip(replayed, eager.results, strict=False)
        ):
            if call.name != eager_call.name:
                return (
                    _described(eager_call, number, eager.record),
                    f"eager runs {eager_call.name}, the capture ran {call.name}",
                )
            if call.name.startswith(UNINITIALIZED) or not values:
                continue
            noise = again[number][1] if len(again) > number else expected
            apart = _apart(values, expected, noise, relative)
            if apart is not None:
                return (_described(call, number, self.probe.record), apart)
        detail = "every op that PyTorch dispatches has equal results"
        if len(replayed) != len(eager.results):
            detail = f"the capture ran {len(replayed)} ops, eager runs {len(eager.results)}"
        return (None, detail)

    def first_not_finite(self, trial: Trial, iteration: int) -> str | None:
        """The first op of a replay whose results are not finite, as in ``find``."""
        for number, (call, values) in enumerate(self._replayed(trial, iteration)):
            if not call.name.startswith(UNINITIALIZED) and not all(map(is_finite, values)):
                return _described(call, number, self.probe.record)
        return None


def _apart(
    values: list[torch.Tensor],
    expected: list[torch.Tensor],
    again: list[torch.Tensor],
    relative: float,
) -> str | None:
    for value, expected_value, repeated in zip(values, expected, again, strict=False):
        distance = difference(expected_value, value)
        if distance.exact:
            continue
        if distance.largest is None:
            return (
                "one has a NaN where the other does not"
                if value.shape == expected_value.shape
                else (f"shapes {list(value.shape)} and {list(expected_value.shape)}")
            )
        noise = difference(expected_value, repeated).largest or 0.0
        if distance.largest > max(2 * noise, relative * magnitude(expected_value)):
            return f"largest difference {distance.largest:.3g}"
    return None
