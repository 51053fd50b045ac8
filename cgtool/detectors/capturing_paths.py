"""Code that asks whether a stream is capturing: what it then does differently from eager mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cgtool.detectors.frozen_host_state import finding_of
from cgtool.findings import code
from cgtool.model.capture import Frames
from cgtool.model.finding import Finding
from cgtool.observe.annotations import Annotations
from cgtool.observe.capturing_queries import watch_capturing_queries
from cgtool.observe.ops import OpCall
from cgtool.recapture.compare import first_difference
from cgtool.recapture.experiment import Caused
from cgtool.recapture.iteration import Iteration, observe
from cgtool.recapture.ops import READS, storages_in

CODE_BRANCHES_ON_CAPTURING = code("code-branches-on-capturing")


def runs_other_ops(query: Frames, eager: Sequence[OpCall], captured: Sequence[OpCall]) -> Finding:
    """The finding of code that asks at ``query`` whether it is being captured, and then runs other
    ops than in eager mode."""
    return Finding(
        CODE_BRANCHES_ON_CAPTURING,
        "this line asks whether a stream is capturing, and the code then runs different ops",
        query,
        phase="capture",
        evidence=(f"{len(eager)} ops in eager mode, {len(captured)} ops in the capture",),
    )


def differs_by_answer(
    query: Frames, run: Callable[[], Any], roots: Any, annotations: Annotations, inputs: Any
) -> Finding | None:
    """The finding of code that asks at ``query`` whether it is being captured, and then runs other
    ops, or passes other numbers or tensors to the same ones. Runs an iteration with each answer."""
    given = set(storages_in(inputs))

    def run_with(answer: bool) -> Iteration:
        with watch_capturing_queries(answer):
            return observe(run, roots, annotations, given)

    eager, captured = run_with(False), run_with(True)
    difference = first_difference(eager, captured, by_name=True)
    if difference is None:
        return None
    if difference.kind == "branch":
        no, yes = ([op.call for op in each.ops if not op.host] for each in (eager, captured))
        return runs_other_ops(query, no, yes)
    return Finding(
        CODE_BRANCHES_ON_CAPTURING,
        "this line asks whether a stream is capturing, and the code then passes other values to "
        "its ops",
        query,
        phase="capture",
        evidence=tuple(
            f"in eager mode, then in the capture: {text}"
            for text in finding_of(Caused(difference, (), captured, "next"), eager).evidence
        ),
    )


def omits_only_checks(eager: Sequence[OpCall], captured: Sequence[OpCall]) -> bool:
    """Whether the capture is eager without some checks of values: each run of ops that it omits
    ends with a value that the host reads."""
    remaining = iter(captured)
    expected = next(remaining, None)
    last_omitted: OpCall | None = None
    for call in eager:
        if expected is not None and _key(call) == _key(expected):
            if last_omitted is not None and last_omitted.name not in READS:
                return False
            expected, last_omitted = next(remaining, None), None
        else:
            last_omitted = call
    return expected is None and (last_omitted is None or last_omitted.name in READS)


def _key(call: OpCall) -> tuple[Any, ...]:
    return call.name, *((id(code_object), lasti) for code_object, lasti in call.chain)
