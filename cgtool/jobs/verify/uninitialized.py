"""Results that depend on uninitialized memory (``torch.empty``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import combinations
from typing import Any

from cgtool.detectors.reporting import at_call
from cgtool.findings import code
from cgtool.jobs.verify.differences import SLACK, difference
from cgtool.jobs.verify.evidence import Results, Trial
from cgtool.jobs.verify.runner import TrialRunner, observed_iteration
from cgtool.model.finding import Finding
from cgtool.observe.effects import UNINITIALIZED
from cgtool.observe.ops import OpCall, OpRecorder
from cgtool.observe.raw_tensors import copies, fill_sentinel
from cgtool.observe.tensors import strided
from cgtool.torch_compat.dispatch_keys import Args, Kwargs

STALE_ACCUMULATOR_OR_UNINITIALIZED = code("stale-accumulator-or-uninitialized")

_MOST = 32
"""Maximum number of calls that are tested one by one."""
_CLEAN_RUNS = 5
"""They measure the noise of the ops, once a run with the sentinel has differed from two of them."""
_SPOILED_RUNS = 2


class SpoilRecorder(OpRecorder):
    """Fills the memory that ``torch.empty`` returns with a sentinel or with zeros, so that results
    that depend on it change."""

    def __init__(self, roots: Any, annotations: Any, only: int | None) -> None:
        """``only``: the index of the one call that gets the sentinel; None: all of them."""
        super().__init__(roots, annotations)
        self.only = only
        self.calls: list[OpCall] = []

    def execute(self, call: OpCall, func: Any, args: Args, kwargs: Kwargs) -> Any:
        output = self.run(func, args, kwargs)
        if call.name.startswith(UNINITIALIZED):
            for tensor in strided(output):
                if self.only is None or self.only == len(self.calls):
                    fill_sentinel(tensor)
                else:
                    tensor.detach().zero_()
            self.calls.append(call)
        return output


def _largest_difference(first: Results, second: Results) -> float:
    """The largest difference; infinite where only one has a NaN."""
    worst = 0.0
    for key in first.keys() & second.keys():
        distance = difference(first[key], second[key])
        if distance.largest is None:
            return math.inf
        worst = max(worst, distance.largest)
    return worst


def reads_uninitialized(runner: TrialRunner, trial: Trial) -> list[Finding]:
    """A finding for the first uninitialized allocation that results depend on, if any.

    Eager gets new memory from the allocator each time, often zeros; a graph gets the memory of its
    last replay. So eager runs again with that memory filled: results that change depend on it.
    """

    def run(only: int | None) -> tuple[Results, SpoilRecorder]:
        runner.begin_eager(trial)
        results, recorder = observed_iteration(runner.target, partial(SpoilRecorder, only=only))
        return copies(results), recorder

    clean, recorder = run(-1)
    if not recorder.calls:
        return []
    # Between two runs with zeros, only the noise of the ops differs.
    runs = [clean, run(-1)[0]]
    if not _differs(runs, run(None)[0]):
        return []
    # Two runs can agree by chance, and atomics make a third one differ from both.
    runs += [run(-1)[0] for _ in range(_CLEAN_RUNS - len(runs))]
    if not all(_differs(runs, run(None)[0]) for _ in range(_SPOILED_RUNS)):
        return []
    for number, call in enumerate(recorder.calls[:_MOST]):
        if all(_differs(runs, run(number)[0]) for _ in range(_SPOILED_RUNS)):
            finding = Finding(
                STALE_ACCUMULATOR_OR_UNINITIALIZED,
                f"results depend on the uninitialized memory that {call.name} returns here: in a "
                "graph, it has the values of the previous replay",
            )
            return [at_call(finding, call, recorder.record)]
    return []


def _differs(runs: Sequence[Results], spoiled: Results) -> bool:
    """Whether ``spoiled`` differs from each of ``runs`` by more than they do from each other."""
    noise = SLACK * max(_largest_difference(*pair) for pair in combinations(runs, 2))
    return all(_largest_difference(run, spoiled) > noise for run in runs)
