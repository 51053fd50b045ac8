"""Results that depend on memory that nobody filled (``torch.empty``).

Eager gets fresh memory from the allocator each time, often zeros; a graph gets the memory of its
last replay. So eager is run once more with that memory filled: results that change depend on it.
"""

from __future__ import annotations

import math

from cgtool.detectors.collect import at_call
from cgtool.findings.registry import code
from cgtool.jobs.verify import replayable
from cgtool.jobs.verify.compare import SLACK, Values, difference
from cgtool.jobs.verify.replayable import Replayable
from cgtool.jobs.verify.runs import Trial, TrialRunner
from cgtool.jobs.verify.state import raw
from cgtool.jobs.verify.watching import SpoilRecorder, recording
from cgtool.model.finding import Finding

STALE_ACCUMULATOR_OR_UNINITIALISED = code("stale-accumulator-or-uninitialised")

_MOST = 32
"""Calls that are tried one by one."""


def _run(
    target: Replayable, stage: TrialRunner, trial: Trial, only: int | None
) -> tuple[Values, SpoilRecorder]:
    stage.begin_eager(trial)
    with recording(target) as annotations:
        recorder = SpoilRecorder(target, annotations, only)
        results = replayable.eager(target, recorder)
    target.synchronize()
    with raw():
        return {key: one.detach().clone() for key, one in results.items()}, recorder


def _apart(one: Values, other: Values) -> float:
    """The largest difference; infinite where one is not a number."""
    worst = 0.0
    for key in one.keys() & other.keys():
        found = difference(one[key], other[key])
        if found.largest is None:
            return math.inf
        worst = max(worst, found.largest)
    return worst


def reads_uninitialised(target: Replayable, stage: TrialRunner, trial: Trial) -> list[Finding]:
    """One finding for the first allocation that results depend on."""
    clean, recorder = _run(target, stage, trial, -1)
    if not recorder.calls:
        return []
    # With zeros everywhere, what is left is the noise of the ops.
    noise = SLACK * _apart(clean, _run(target, stage, trial, -1)[0])
    if not math.isfinite(noise) or _apart(clean, _run(target, stage, trial, None)[0]) <= noise:
        return []
    for number, call in enumerate(recorder.calls[:_MOST]):
        if _apart(clean, _run(target, stage, trial, number)[0]) > noise:
            finding = Finding(
                STALE_ACCUMULATOR_OR_UNINITIALISED,
                f"results depend on what is in the memory that {call.name} hands out here: in a "
                "graph, what the replay before left in it",
            )
            return [at_call(finding, call, recorder.record)]
    return []
