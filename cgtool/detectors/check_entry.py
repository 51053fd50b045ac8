"""The steps of ``cgtool check ENTRY``, the same on a GPU and on the simulated device."""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from msgspec.structs import replace

from cgtool.detectors import preflight
from cgtool.detectors.capture_errors import at_checkpoint, explain
from cgtool.detectors.capturing_paths import (
    differs_by_answer,
    omits_only_checks,
    runs_other_ops,
)
from cgtool.detectors.frozen_host_state import (
    CONTROL_FLOW_FROZEN,
    RNG_FROZEN_SEED,
    Differences,
    compare_iterations,
)
from cgtool.detectors.reporting import CapturedRegion, at_call
from cgtool.detectors.streams import LaneNode
from cgtool.findings import code
from cgtool.model.failure import CgtoolError
from cgtool.model.finding import NOTE, Finding
from cgtool.model.options import CaptureOptions, Progress
from cgtool.observe.annotations import Annotations
from cgtool.observe.frames import in_library, package_part
from cgtool.observe.ops import OpCall, Record
from cgtool.program.phases import (
    NO_DIFFERENTIABLE_PARAMS,
    UNUSED_INPUT,
    WorkloadRun,
    roots_of,
    warmup_iters,
)
from cgtool.program.workload import Workload
from cgtool.recapture.ops import SKIPPED
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import CAPTURE_HEALTH_CHECKS

MEMCPY_MEMSET_NODE_OVERHEAD = code("memcpy-memset-node-overhead")

Result = TypeVar("Result")
DryRun = Callable[[Annotations, CaptureOptions], Sequence[OpCall]]
"""Runs the workload as if it were captured, continuing after a finding; returns all its calls."""
_WITHOUT: dict[str, dict[str, bool]] = {
    UNUSED_INPUT: {"allow_unused_input": True},
    NO_DIFFERENTIABLE_PARAMS: {"backward": False},
}
"""By the code of a refusal of the entry itself, options under which the rest can be checked."""

_MOVES = frozenset(
    ("aten::copy_", "aten::_to_copy", "aten::clone", "aten::fill_", "aten::zero_", "aten::zeros",
     "aten::contiguous", "aten::zeros_like", "aten::_foreach_zero_", "aten::_foreach_copy_")
)  # fmt: skip
_LEAST_MOVES = 16
_LEAST_SHARE_OF_MOVES = 0.4


def check_entry(
    region: CapturedRegion,
    workload: Workload,
    options: CaptureOptions,
    progress: Progress,
    annotations: Annotations,
    dry_run: DryRun,
    *,
    later: bool = True,
) -> tuple[str, ...]:
    """Fill ``region.findings``; returns what was checked. ``later``: the code also runs as it would
    run later.

    Raises CgtoolError when the code fails in eager mode already, for a reason that has no code.
    """
    findings, checked = region.findings, ["settings, modules and optimizers"]
    findings.extend(preflight.findings_of(options))
    for refusal in workload.refusals:
        findings.extend(refusal.failure.findings)
    iterations, _ = warmup_iters(workload, options)

    inputs = [(part.args, dict(part.kwargs)) for part in workload.parts]
    observed = roots_of(workload), annotations, inputs

    def compared(
        session: WorkloadRun,
    ) -> tuple[dict[int, preflight.Stepped], Differences, Callable[[], None], set[int]]:
        def run() -> None:
            session.run_eagerly(1, lambda _text: None, explain)

        session.run_eagerly(max(1, iterations - 2), progress, explain)
        progress("compare two iterations")
        with preflight.stepping_optimizers() as steps:
            differences = compare_iterations(run, *observed, workload, later=later)
        return steps, differences, run, session.without_gradient

    try:
        options, results = _without_refusals(region, workload, options, compared)
        steps, differences, run, without_gradient = results
        iteration = differences.iteration
        findings.extend(preflight.captured_optimizers(steps.values()))
        findings.extend(preflight.of_modules(workload, differences.findings))
        findings.extend(differences.explained)
        branches = (CONTROL_FLOW_FROZEN, RNG_FROZEN_SEED)
        if any(finding.code in branches for finding in differences.findings):
            # Another call may run the layers that this one skipped.
            findings.demote(UNUSED_INPUT)
        checked.append("two eager iterations")
        if later and not differences.limits:
            checked.append("runs from later host state")
        checked.extend(differences.limits)
        gc.collect()
        region.collecting = True
        region.without_gradient = without_gradient.copy()
        try:
            with stepping_anyway(region):
                captured = dry_run(annotations, options)
        finally:
            # They may follow from what the host reads there.
            findings.extend(differences.unexplained)
        checked.append("a dry run of the capture")
        if without_gradient and not region.without_gradient:
            # What computes on the device instead gives them one.
            findings.drop(UNUSED_INPUT)
    except CgtoolError as error:
        if not error.failure.findings and not workload.refusals:
            raise
        known = {finding.code for finding in findings}
        unknown = (finding for finding in error.failure.findings if finding.code not in known)
        findings.extend(map(at_checkpoint, unknown))
        checked.append(f"stopped in {error.failure.phase or 'the run'}: {error.failure.message}")
        return tuple(checked)
    query = next((frames for frames in region.capturing_queries if frames), None)
    if query is not None:
        eager = _of_the_code(operation.call for operation in iteration.ops)
        captured = _of_the_code(captured)
        if [call.name for call in eager] != [call.name for call in captured]:
            finding = runs_other_ops(query, eager, captured)
            if omits_only_checks(eager, captured) or in_library(query[0]):
                finding = replace(finding, severity=NOTE)
            findings.add(finding)
        elif not in_library(query[0]) and not differences.findings:
            # What is reported for every iteration would look like an answer to the query.
            with contextlib.suppress(CgtoolError):
                if other := differs_by_answer(query, run, *observed):
                    findings.add(other)
    return tuple(checked)


def _without_refusals(
    region: CapturedRegion,
    workload: Workload,
    options: CaptureOptions,
    run: Callable[[WorkloadRun], Result],
) -> tuple[CaptureOptions, Result]:
    """What ``run`` returns; what the entry itself is refused for is reported, and no longer
    required by the options."""
    while True:
        try:
            return options, run(WorkloadRun(workload, options))
        except CgtoolError as error:
            refusals = [f for f in error.failure.findings if f.code in _WITHOUT]
            if not refusals:
                raise
            region.findings.extend(refusals)
            options = replace(options, **_WITHOUT[refusals[0].code])


@contextlib.contextmanager
def stepping_anyway(region: CapturedRegion) -> Iterator[None]:
    """Optimizers do not refuse to be captured: ``captured_optimizers`` has reported those that do,
    and the code after their step is checked too."""

    def health_check(original: Any, *args: Any) -> Any:
        return None if region.capturing else original(*args)

    with Patches() as patches:
        for name in CAPTURE_HEALTH_CHECKS:
            if hasattr(torch.optim.Optimizer, name):
                patches.wrap(torch.optim.Optimizer, name, health_check)
        yield


def _of_the_code(calls: Iterable[OpCall]) -> list[OpCall]:
    """Without what cgtool runs itself: the gradients that backward starts from."""
    return [
        call
        for call in calls
        if (call.autograd_node or not _is_own(call)) and not call.name.startswith(SKIPPED)
    ]


def _is_own(call: OpCall) -> bool:
    """Whether cgtool runs it itself. What stands in for a function of PyTorch runs the code's."""
    file = call.innermost[0].co_filename if call.innermost is not None else ""
    return package_part(file).startswith("/cgtool/program/")


def findings_of_graph(nodes: Sequence[LaneNode], record: Record) -> Iterator[Finding]:
    """Findings about one captured graph as a whole, from the ops that became its nodes."""
    moves = [node.call for node in nodes if node.call.name.partition(".")[0] in _MOVES]
    if len(moves) >= _LEAST_MOVES and len(moves) >= _LEAST_SHARE_OF_MOVES * len(nodes):
        most_frequent = Counter(_site(call) for call in moves).most_common(1)[0][0]
        yield at_call(
            Finding(
                MEMCPY_MEMSET_NODE_OVERHEAD,
                f"{len(moves)} of {len(nodes)} nodes copy, cast or fill; most of them are from "
                "this line",
            ),
            next(call for call in moves if _site(call) == most_frequent),
            record,
        )


def _site(call: OpCall) -> tuple[int, int]:
    return (id(call.chain[0][0]), call.chain[0][1]) if call.chain else (0, 0)
