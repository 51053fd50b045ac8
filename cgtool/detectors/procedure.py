"""``cgtool check``: what is looked at, in order. The same on a GPU and on the simulated device."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence

from cgtool.detectors import asking, checkpoints, preflight, repeat
from cgtool.detectors.errors import explain
from cgtool.detectors.iteration import SKIPPED
from cgtool.detectors.optimizers import Steps
from cgtool.detectors.region import Region
from cgtool.findings.registry import code
from cgtool.model.failure import CgtoolError
from cgtool.model.finding import NOTE, Finding
from cgtool.model.options import CaptureOptions, Progress
from cgtool.observe.annotations import Annotations
from cgtool.observe.frames import in_library
from cgtool.observe.ops import OpCall
from cgtool.program.phases import Phases, roots_of, warm_up, warmup_iters
from cgtool.program.workload import Workload

CODE_BRANCHES_ON_CAPTURING = code("code-branches-on-capturing")

Dry = Callable[[Annotations], Sequence[OpCall]]
"""Runs the workload as if it were captured, going on after a hazard; all calls that it made."""


def look(
    region: Region,
    workload: Workload,
    options: CaptureOptions,
    progress: Progress,
    annotations: Annotations,
    dry: Dry,
) -> tuple[str, ...]:
    """Fill ``region.findings``; what was looked at.

    Raises CgtoolError when the code fails in eager mode already, for a reason that has no code.
    """
    findings, looked = region.findings, ["settings, modules and optimizers"]
    for finding in preflight.look(workload, options):
        findings.add(finding)
    session = Phases(workload, options)
    iterations, _ = warmup_iters(workload, options)
    try:
        warm_up(session, max(1, iterations - 2), progress, explain)
        progress("compare two iterations")
        with Steps() as steps:
            found, iteration = repeat.compare(
                lambda: warm_up(session, 1, lambda _text: None, explain),
                roots_of(workload),
                annotations,
                [(part.args, dict(part.kwargs)) for part in workload.parts],
            )
        for finding in (*steps.findings(), *found):
            findings.add(finding)
        looked.append("two eager iterations, held against each other")
        gc.collect()
        region.collecting = True
        captured = dry(annotations)
        looked.append("a dry capture that goes on after a refusal")
    except CgtoolError as error:
        if not error.failure.findings:
            raise
        known = {one.code for one in findings}
        for finding in error.failure.findings:
            if finding.code not in known:
                findings.add(checkpoints.placed(finding))
        looked.append(f"stopped in {error.failure.phase or 'the run'}: {error.failure.what}")
        return tuple(looked)
    _branches_on_capturing(region, [one.call for one in iteration.ops], captured)
    return tuple(looked)


def _branches_on_capturing(
    region: Region, eager: Sequence[OpCall], captured: Sequence[OpCall]
) -> None:
    """The code asked whether it is captured, and ran other ops when it was."""
    asked = next((frames for frames in region.asked if frames), None)
    if asked is None:
        return
    eager, captured = _of_the_code(eager), _of_the_code(captured)
    if [one.name for one in eager] != [one.name for one in captured]:
        region.findings.add(
            Finding(
                CODE_BRANCHES_ON_CAPTURING,
                "the code asks here whether it is being captured, and runs other ops when it is",
                asked,
                evidence=(f"{len(eager)} ops in eager mode, {len(captured)} in the capture",),
                severity=NOTE if in_library(asked[0]) else asking.severity(eager, captured),
            )
        )


def _of_the_code(calls: Sequence[OpCall]) -> list[OpCall]:
    """Without what cgtool runs itself: the gradients that come in."""
    return [
        one
        for one in calls
        if (one.chain or one.autograd_node) and not one.name.startswith(SKIPPED)
    ]
