"""The first op at which replay and eager differ, and the first that makes a NaN."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cgtool.detectors.reporting import at_call
from cgtool.devices.device import Probes, VerifyTarget
from cgtool.devices.op_results import OpResults, ResultRecorder
from cgtool.jobs.verify.compare import difference, is_finite, magnitude
from cgtool.jobs.verify.runs import Trial, TrialRunner, eager_iteration
from cgtool.jobs.verify.watching import recording
from cgtool.model.capture import Frame
from cgtool.model.finding import Code, Finding
from cgtool.observe.effects import UNINITIALISED
from cgtool.observe.ops import OpCall, Record
from cgtool.program.phases import roots_of

_TRIES = 3
"""Runs that are compared with the first, because two runs can have the same noise."""


@dataclass(frozen=True)
class Node:
    """An op, for a message."""

    text: str
    """``aten::mul (node 12)``; continues a sentence."""
    placed: Finding
    """A finding that has only the place of the op."""

    @property
    def frames(self) -> tuple[Frame, ...]:
        return self.placed.frames


@dataclass
class FirstDifference:
    """The first op at which a replay and an eager iteration differ, and how."""

    node: Node | None
    detail: str


def _place(call: OpCall, record: Record) -> Finding:
    return at_call(Finding(Code(""), ""), call, record)


def _node(call: OpCall, number: int, record: Record) -> Node:
    return Node(f"{call.name} (op {number} of the capture)", _place(call, record))


def _eager(
    target: VerifyTarget, runner: TrialRunner, trial: Trial, iteration: int
) -> tuple[OpResults, Record]:
    """What every op of an eager iteration (from 0) made."""
    runner.begin_eager(trial)
    for _ in range(iteration):
        eager_iteration(target)
    with recording(target) as annotations:
        recorder = ResultRecorder(roots_of(target.workload), annotations, target.device)
        eager_iteration(target, recorder)
    target.device.synchronize()
    return recorder.results, recorder.record


def first_noisy(target: VerifyTarget, runner: TrialRunner, trial: Trial) -> Finding | None:
    """The place of the first op whose results differ between eager runs from the same state."""
    first_run, record = _eager(target, runner, trial, 0)
    for _ in range(_TRIES):
        second_run, _record = _eager(target, runner, trial, 0)
        for (call, values), (_, others) in zip(first_run, second_run, strict=False):
            if not call.name.startswith(UNINITIALISED) and _apart(values, others, others, 0.0):
                return _place(call, record)
    return None


class Divergence:
    """A second capture with every op's results kept, and eager iterations to compare it with."""

    def __init__(self, target: VerifyTarget, runner: TrialRunner) -> None:
        self.target = target
        self.runner = runner
        runner.begin_eager(Trial("probe"))
        self.probes: Probes = target.probe()

    def _replayed(self, trial: Trial, iteration: int) -> OpResults:
        self.runner.begin_replay(trial)
        for _ in range(iteration):
            self.probes.replay()
        self.probes.replay()
        self.target.device.synchronize()
        return self.probes.results()

    def _eager(self, trial: Trial, iteration: int) -> tuple[OpResults, Record]:
        return _eager(self.target, self.runner, trial, iteration)

    def find(self, trial: Trial, iteration: int, relative: float) -> FirstDifference:
        """The first op of an iteration (from 0) whose results differ.

        ``relative``: the largest difference, over the largest magnitude, that counts as noise.
        """
        replayed = self._replayed(trial, iteration)
        eager_ops, record = self._eager(trial, iteration)
        again = self._eager(trial, iteration)[0] if relative else eager_ops
        for number, ((call, values), (eager_call, expected)) in enumerate(
            zip(replayed, eager_ops, strict=False)
        ):
            if call.name != eager_call.name:
                return FirstDifference(
                    _node(eager_call, number, record),
                    f"eager runs {eager_call.name}, the capture ran {call.name}",
                )
            if call.name.startswith(UNINITIALISED) or not values:
                continue
            noise = again[number][1] if len(again) > number else expected
            apart = _apart(values, expected, noise, relative)
            if apart is not None:
                return FirstDifference(_node(call, number, self.probes.record), apart)
        if len(replayed) != len(eager_ops):
            return FirstDifference(
                None, f"the capture ran {len(replayed)} ops, eager runs {len(eager_ops)}"
            )
        return FirstDifference(None, "every op that PyTorch dispatches has equal results")

    def first_not_finite(self, trial: Trial, iteration: int) -> Node | None:
        """The first op of a replay whose results are not finite."""
        for number, (call, values) in enumerate(self._replayed(trial, iteration)):
            if call.name.startswith(UNINITIALISED):
                continue
            if not all(is_finite(tensor) for tensor in values):
                return _node(call, number, self.probes.record)
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
