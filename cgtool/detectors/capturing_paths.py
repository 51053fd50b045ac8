"""Code that asks whether a stream is capturing: what it then does differently from eager mode."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from cgtool.detectors.frozen_host_state import (
    CONTROL_FLOW_FROZEN,
    FROZEN,
    compare_iterations,
)
from cgtool.findings import code
from cgtool.model.capture import Frames
from cgtool.model.finding import Finding
from cgtool.observe.annotations import Annotations
from cgtool.observe.capturing_queries import watch_capturing_queries
from cgtool.observe.ops import OpCall
from cgtool.recapture.iteration import observe
from cgtool.recapture.ops import READS, Op

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


def reads_only_in_eager(query: Frames) -> Finding:
    """The finding of code that asks at ``query`` whether it is being captured, and if not uses a
    value that it reads from the device."""
    return Finding(
        CODE_BRANCHES_ON_CAPTURING,
        "this line asks whether a stream is capturing, and only in eager mode the code uses a "
        "value that it reads from the device",
        query,
        phase="capture",
    )


def ops_with_answer(
    answer: bool, run: Callable[[], Any], roots: Any, annotations: Annotations
) -> list[Op]:
    """The ops of an iteration in which all queries get this answer."""
    with watch_capturing_queries(answer):
        return observe(run, roots, annotations, set()).ops


def does_the_same(eager: Sequence[Op], captured: Sequence[Op]) -> bool:
    """Whether both run the same ops with the same numbers, on whatever lines."""
    return [(op.call.name, op.numbers) for op in eager] == [
        (op.call.name, op.numbers) for op in captured
    ]


def passes_other_values(
    query: Frames, run: Callable[[], Any], roots: Any, annotations: Annotations, inputs: Any
) -> Finding | None:
    """The finding of code that asks at ``query`` whether it is being captured, and then passes
    other numbers or tensors to the same ops. Runs iterations that get one answer and the other."""
    answers = itertools.cycle((False, True))

    def run_with_answer() -> None:
        with watch_capturing_queries(next(answers)):
            run()

    differences = compare_iterations(run_with_answer, roots, annotations, inputs)
    different = [
        finding
        for finding in differences.findings
        if finding.code in FROZEN and finding.severity is None
    ]
    # The same ops may be on a line for each answer.
    is_other_line = all(finding.code == CONTROL_FLOW_FROZEN for finding in different)
    if not different or (
        is_other_line
        and does_the_same(
            *(ops_with_answer(answer, run, roots, annotations) for answer in (False, True))
        )
    ):
        return None
    return Finding(
        CODE_BRANCHES_ON_CAPTURING,
        "this line asks whether a stream is capturing, and the code then passes other values to "
        "its ops",
        query,
        phase="capture",
        evidence=tuple(
            f"in eager mode, then in the capture: {text}"
            for finding in different[:1]
            for text in finding.evidence[:1]
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
