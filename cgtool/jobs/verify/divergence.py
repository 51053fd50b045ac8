"""The first op at which replay and eager differ, and the first that produces a NaN."""

from __future__ import annotations

from functools import partial
from itertools import zip_longest
from typing import NamedTuple

import torch

from cgtool.detectors.reporting import at_call
from cgtool.devices.device import OpResults, Ops, ResultRecorder
from cgtool.jobs.verify.differences import difference, magnitude
from cgtool.jobs.verify.evidence import Key, Results, Trial
from cgtool.jobs.verify.runner import TrialRunner, observed_iteration, results_of
from cgtool.jobs.verify.state import state_of
from cgtool.model.capture import Frames
from cgtool.model.finding import Code, Finding
from cgtool.observe.effects import UNINITIALIZED
from cgtool.observe.ops import OpCall, Record
from cgtool.observe.raw_tensors import copies, is_finite

_TRIES = 3
"""Runs that are compared with the first, because two runs can have the same noise."""


def _described(call: OpCall, number: int, record: Record) -> str:
    """For a message: name, number, line, module, and for an op of a backward the forward line."""
    place = at_call(Finding(Code(""), ""), call, record)
    text = f"{call.name} (op {number})"
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


def _eager(runner: TrialRunner, trial: Trial, iteration: int) -> tuple[Results, ResultRecorder]:
    """The results of an eager iteration (from 0), and those of every op in it."""
    runner.begin_eager(trial, iteration)
    make_recorder = partial(ResultRecorder, device=runner.target.device)
    return observed_iteration(runner.target, make_recorder)


def at_first_noisy(finding: Finding, runner: TrialRunner, trial: Trial) -> Finding:
    """The finding at the first op whose results differ between eager runs from the same state."""
    _, first = _eager(runner, trial, 0)
    for _ in range(_TRIES):
        _, second = _eager(runner, trial, 0)
        for (call, values), (_, others) in zip(first.results, second.results, strict=False):
            if not call.name.startswith(UNINITIALIZED) and _apart(values, others, others, 0.0):
                return at_call(finding, call, first.record)
    return finding


class Parting(NamedTuple):
    """Where replay and eager first differ."""

    op: str | None
    """The op; None if none is known."""
    detail: str
    """How they differ there, or why no op is known."""


_NOT_REPRODUCED = Parting(
    None,
    "the op is unknown, because a second capture does not differ from a second eager run: what "
    "differs changes from run to run",
)


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

    def find(self, trial: Trial, iteration: int, relative: float, key: Key) -> Parting:
        """The first op of an iteration (from 0) whose results differ, and how.

        ``relative``: the largest difference, over the largest magnitude, that counts as noise;
        ``key``: the tensor that differed.
        """
        replayed = self._replayed(trial, iteration)
        replay_left = self._left(results_of(self.probe.run), key)
        results, eager = _eager(self.runner, trial, iteration)
        eager_left = self._left(results, key)
        again = _eager(self.runner, trial, iteration)[1].results if relative else eager.results
        second = Ops(self.probe.record, [call for call, _ in replayed])
        first = self.runner.target.captured_ops() or second
        if first.names != second.names:
            # The second capture took another path than the one that was verified.
            return _other_path(first, eager) or _NOT_REPRODUCED
        for number, ((call, values), (eager_call, expected)) in enumerate(
            zip(replayed, eager.results, strict=False)
        ):
            if call.name != eager_call.name:
                break
            if call.name.startswith(UNINITIALIZED) or not values:
                continue
            noise = again[number][1] if len(again) > number else expected
            apart = _apart(values, expected, noise, relative)
            if apart is not None:
                return Parting(_described(call, number, self.probe.record), apart)
        if (other := _other_path(first, eager)) is not None:
            return other
        if replay_left and eager_left and _apart(replay_left, eager_left, eager_left, relative):
            return Parting(None, "every op that PyTorch dispatches has equal results")
        return _NOT_REPRODUCED

    def _left(self, results: Results, key: Key) -> list[torch.Tensor]:
        """A copy of a tensor as an iteration left it."""
        kind, name = key
        if kind == "state":
            tensor = dict(self.runner.inputs).get(name)
            if tensor is None:
                tensor = state_of(self.runner.target.workload).get(name)
        else:
            tensor = results.get(key)
        return [] if tensor is None else [*copies({0: tensor}).values()]

    def first_not_finite(self, trial: Trial, iteration: int) -> str | None:
        """The first op of a replay whose results are not finite, as in ``find``."""
        for number, (call, values) in enumerate(self._replayed(trial, iteration)):
            if not call.name.startswith(UNINITIALIZED) and not all(map(is_finite, values)):
                return _described(call, number, self.probe.record)
        return None


def _other_path(captured: Ops, eager: ResultRecorder) -> Parting | None:
    """The first op at which eager does not run what the capture ran; None if all have the same
    names."""
    ran = [call for call, _ in eager.results]
    for number, (call, eager_call) in enumerate(zip_longest(captured.calls, ran)):
        if eager_call is None:
            place = _described(call, number, captured.record)
            return Parting(place, f"the capture ran {call.name}, eager ends before it")
        place = _described(eager_call, number, eager.record)
        if call is None:
            return Parting(place, f"eager runs {eager_call.name}, the capture ends before it")
        if call.name != eager_call.name:
            return Parting(place, f"eager runs {eager_call.name}, the capture ran {call.name}")
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
                else f"shape {list(value.shape)}, not {list(expected_value.shape)}"
            )
        noise = difference(expected_value, repeated).largest or 0.0
        if distance.largest > max(2 * noise, relative * magnitude(expected_value)):
            return f"largest difference {distance.largest:.3g}"
    return None
