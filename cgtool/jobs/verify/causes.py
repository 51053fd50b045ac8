"""Why a replay differs from eager: the findings that explain it, each at its line."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from msgspec.structs import replace

from cgtool.detectors.capturing_paths import differs_by_answer
from cgtool.detectors.frozen_host_state import (
    CPU_WORK_IN_REGION,
    FROZEN,
    PYTHON_SCALAR_FROZEN,
    PYTHON_SIDE_EFFECTS_SKIPPED,
    compare_iterations,
)
from cgtool.detectors.one_iteration import IN_PLACE_ON_STATIC_INPUT
from cgtool.detectors.preflight import (
    LR_FROZEN_DESPITE_CAPTURABLE,
    OPTIMIZER_WITHOUT_CAPTURE_GUARD,
    captured_optimizers,
    stepping_optimizers,
)
from cgtool.jobs.verify.evidence import Trial
from cgtool.jobs.verify.runner import TrialRunner, eager_iteration
from cgtool.model.finding import ERROR, NOTE, WARNING, Finding
from cgtool.observe.annotations import watch as watch_annotations
from cgtool.observe.capturing_queries import Queries
from cgtool.observe.tensors import on_host
from cgtool.program.phases import roots_of
from cgtool.program.workload import Workload
from cgtool.torch_compat.patches import without_collector

_FROZEN = FROZEN | {LR_FROZEN_DESPITE_CAPTURABLE, OPTIMIZER_WITHOUT_CAPTURE_GUARD}


def _compared(
    runner: TrialRunner, run: Callable[[], Any], workload: Workload | None = None
) -> list[Finding]:
    """Findings of two eager iterations, compared by their ops and by the numbers of optimizers.
    With the ``workload``, the host state that makes the difference is found too."""
    target = runner.target
    inputs = [(part.args, dict(part.kwargs)) for part in target.workload.parts]
    ranges = watch_annotations(target.options.annotations)
    numbers: list[dict[int, dict[str, Any]]] = []
    with ranges as annotations, without_collector(), stepping_optimizers() as steps:

        def run_and_look() -> None:
            run()
            numbers.append({key: _numbers_of(step.optimizer) for key, step in steps.items()})

        differences = compare_iterations(
            run_and_look, roots_of(target.workload), annotations, inputs, workload
        )
    findings = differences.findings
    before, after = numbers[:2]
    moved = {
        key: [
            f"{name}: {before[key][name]:.6g}, then {number:.6g}"
            for name, number in after[key].items()
            if before[key].get(name, number) != number
        ]
        for key in before
    }
    stepped = [step for key, step in steps.items() if moved.get(key)]
    for finding in captured_optimizers(stepped):
        evidence = [text for texts in moved.values() for text in texts]
        findings.append(
            replace(finding, evidence=(*finding.evidence, *evidence[:3]), severity=ERROR)
        )
    return findings


def consecutive(runner: TrialRunner, trial: Trial, skipped: int) -> list[Finding]:
    """Compare two consecutive iterations, after ``skipped`` others."""
    runner.begin_eager(trial, skipped)
    return _compared(runner, runner.iterate, runner.target.workload)


def _restarted(runner: TrialRunner, first: Trial, second: Trial) -> list[Finding]:
    """Compare two iterations from the state of the capture, each with its own inputs."""
    trials = itertools.cycle((first, second))

    def run() -> None:
        runner.begin_eager(next(trials))
        runner.iterate()

    return _compared(runner, run)


def frozen(runner: TrialRunner, trial: Trial, iteration: int, captured: Trial) -> list[Finding]:
    """Findings on values that the host changes between iterations, or between two sets of
    inputs."""
    for skipped in range(max(1, iteration)):
        if findings := _frozen_among(consecutive(runner, trial, skipped)):
            return findings
    inputs = Trial(trial.name, writes=trial.writes[iteration : iteration + 1])
    return _frozen_among(_restarted(runner, captured, inputs))


def hidden(findings: list[Finding]) -> list[Finding]:
    """Findings on values that the host changes or draws, though no result shows it. They are
    errors: whether it shows is a matter of luck."""
    return [
        replace(finding, severity=None)
        for finding in _frozen_among(findings)
        if finding.severity != NOTE
    ]


def not_restored(runner: TrialRunner, trial: Trial) -> tuple[Finding, ...]:
    """Values that the host changes although everything that cgtool reaches is set back: a clock,
    a file. A random order of a sum is noise: what is only drawn at random is left out, unless it
    is seen to reach an op."""
    return tuple(
        replace(finding, severity=None)
        for finding in _frozen_among(_restarted(runner, trial, trial))
        if finding.severity in (None, ERROR)
    )


def side_effects(findings: list[Finding], known: list[Finding]) -> list[Finding]:
    """Findings on containers that Python changes and a replay does not, without those already
    named."""
    lines = {finding.frames[:1] for finding in known}
    named = {name for finding in known for name in _named_in(finding)}
    effects = (each for each in findings if each.code == PYTHON_SIDE_EFFECTS_SKIPPED)
    return [
        finding
        for finding in effects
        if finding.frames[:1] not in lines and named.isdisjoint(_named_in(finding))
    ]


def _named_in(finding: Finding) -> list[str]:
    """The host state that its evidence names."""
    return [text.split("`")[1] for text in finding.evidence if text.startswith("`")]


def _numbers_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Numbers of an optimizer's options and state that are on the host, by name."""
    numbers = {
        f"{key} of group {index}" if index else key: value
        for index, group in enumerate(optimizer.param_groups)
        for key, value in group.items()
        if isinstance(value, int | float)
    }
    for number, state in enumerate(optimizer.state.values()):
        for key, value in state.items():
            host = isinstance(value, torch.Tensor) and on_host(value) and value.dim() == 0
            if host or isinstance(value, int | float):
                numbers[f"{key} of parameter {number}"] = float(value)
    return numbers


def _frozen_among(findings: list[Finding]) -> list[Finding]:
    """Findings on what a graph freezes; a line of host work is reported once."""
    host = {finding.frames[:1] for finding in findings if finding.code == CPU_WORK_IN_REGION}
    return [
        finding
        for finding in findings
        if finding.code in _FROZEN
        and not (finding.code == PYTHON_SCALAR_FROZEN and finding.frames[:1] in host)
    ]


def branches_on_capturing(runner: TrialRunner, queries: Queries, trial: Trial) -> list[Finding]:
    """The code asked during capture whether a stream is capturing, and then did something else."""
    if not queries:
        return []
    target = runner.target
    roots = roots_of(target.workload)
    inputs = [(part.args, dict(part.kwargs)) for part in target.workload.parts]

    def run() -> None:
        runner.begin_eager(trial)
        eager_iteration(target)

    with watch_annotations(target.options.annotations) as annotations:
        other = differs_by_answer(queries[0], run, roots, annotations, inputs)
    return [] if other is None else [other]


def written_inputs(names: list[str], findings: list[Finding]) -> Iterator[Finding]:
    """Static inputs that the callable writes."""
    at_line = [finding for finding in findings if finding.code == IN_PLACE_ON_STATIC_INPUT]
    for finding in at_line[:1] if len(names) == 1 else at_line:
        yield replace(
            finding,
            severity=finding.severity or WARNING,
            evidence=(*finding.evidence, f"changed by a replay: {', '.join(names)}"),
        )
    if not at_line:
        yield Finding(
            IN_PLACE_ON_STATIC_INPUT,
            f"a replay changes {', '.join(names)}: the next replay starts from the changed values, "
            "unless new ones are copied in",
            severity=WARNING,
            phase="replay",
        )
