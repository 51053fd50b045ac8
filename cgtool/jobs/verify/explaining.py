"""Why and where replay and eager differ: causes are tried from the surest to the vaguest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from cgtool.detectors.reporting import FindingLog
from cgtool.devices.device import VerifyTarget
from cgtool.findings.registry import code
from cgtool.jobs.verify import causes, randomness, state
from cgtool.jobs.verify.causes import CapturingQueries
from cgtool.jobs.verify.compare import TrialResult, is_finite
from cgtool.jobs.verify.divergence import Divergence, Node, first_noisy
from cgtool.jobs.verify.runs import Run, Trial, TrialRunner
from cgtool.model.capture import Caveat, Frame
from cgtool.model.failure import CgtoolError
from cgtool.model.finding import NOTE, Finding
from cgtool.model.options import Progress
from cgtool.program.boundary import first_line
from cgtool.program.workload import Workload

CAPTURE_DOES_NOT_EXECUTE = code("capture-does-not-execute")
EAGER_VS_GRAPH_NUMERIC_NOISE = code("eager-vs-graph-numeric-noise")
OUTPUT_OVERWRITTEN_BY_NEXT_REPLAY = code("output-overwritten-by-next-replay")
STALE_ACCUMULATOR_OR_UNINITIALISED = code("stale-accumulator-or-uninitialised")


@dataclass
class VerifyState:
    """What is known about the workload when the trials begin, and what the trials add."""

    runner: TrialRunner
    captured: Trial
    """The trial with the inputs of the capture."""
    liveness: causes.Liveness
    queries: CapturingQueries
    noise_counts: bool = True
    """True when eager differs from itself by chance, False when the host changes a number."""
    deterministic: bool = True
    frozen: list[Finding] = field(default_factory=list)
    """Which numbers the host changes."""
    random: set[tuple[str, str]] = field(default_factory=set)
    """(kind, name) of random results for which a replay draws other numbers than eager."""
    spoiled: list[Finding] = field(default_factory=list)
    """Memory that is read before it is written."""


def explain(
    target: VerifyTarget,
    facts: VerifyState,
    results: list[TrialResult],
    log: VerifyLog,
    progress: Progress,
) -> None:
    """Report every finding, and the ops at which replay and eager first differ."""
    eager = causes.Eager(target, facts.runner)
    differing = [result for result in results if result.differing]
    reasons: list[Finding] = []
    if differing:
        progress("look for the reason")
        reasons = list(_reasons(target, facts, eager, differing[0]))
    arguments = {name for name, _ in facts.runner.inputs}
    written = [name for name in facts.runner.written if name in arguments]
    consecutive = eager.in_a_row(facts.captured) if written or facts.liveness.freed_inputs else []
    for finding in facts.liveness.joined([*reasons, *consecutive], reasons):
        log.add(finding)
    for finding in facts.spoiled:
        if finding not in reasons:
            log.add(finding)
    if written:
        for finding in causes.written_inputs(written, consecutive):
            log.add(finding)
    # Finding such work runs the code again, from the state of the capture.
    facts.runner.begin_eager(facts.captured)
    for finding in target.uncaptured_work(bool(differing)):
        log.add(finding)
    _report_kept_outputs(results[0], log)
    if facts.noise_counts and not facts.deterministic and not facts.spoiled:
        log.add(_noise(target, facts, max(results, key=_worst_noise)))
    _report_ops(target, facts, results, log)
    known = log.places()
    for finding in target.freed_inputs():
        if finding.frames[:1] not in known:
            log.add(finding)


def _reasons(
    target: VerifyTarget, facts: VerifyState, eager: causes.Eager, first: TrialResult
) -> Iterator[Finding]:
    """The findings of the first kind of cause that applies."""
    for kind in (
        lambda: causes.branches_on_capturing(target, facts.runner, facts.queries, facts.captured),
        lambda: iter(
            facts.frozen or eager.frozen(first.trial, first.differing[0][0], facts.captured)
        ),
        lambda: iter(facts.spoiled),
        lambda: _unwritten(first),
        lambda: randomness.frozen(target, facts.runner, first.trial),
        lambda: _unlike_itself(facts, first),
    ):
        findings = list(kind())
        if findings:
            yield from findings
            return


def _unwritten(first: TrialResult) -> Iterator[Finding]:
    for name in first.replay.unwritten[:1]:
        yield Finding(
            CAPTURE_DOES_NOT_EXECUTE,
            f"no replay writes {name}: it keeps what the capture left in it",
            phase="replay",
            evidence=("it was overwritten before the replay, and the replay did not change it",),
        )


def _unlike_itself(facts: VerifyState, first: TrialResult) -> Iterator[Finding]:
    if not facts.deterministic:
        return
    for name in _differing(first.replay, facts.runner.replay(first.trial))[:1]:
        yield Finding(
            STALE_ACCUMULATOR_OR_UNINITIALISED,
            f"two replays with the same inputs and state differ in {name}, and two eager runs do "
            "not: the graph reads memory that an earlier replay wrote",
            phase="replay",
        )


def _differing(run: Run, other: Run) -> list[str]:
    """Names of the tensors that differ between two runs."""
    return [
        name
        for values, again in zip(run.values, other.values, strict=True)
        for (kind, name), tensor in values.items()
        if (kind, name) in again and not state.unchanged(tensor, again[kind, name])
    ]


def _worst_noise(result: TrialResult) -> float:
    return max((comparison.noise or 0.0 for comparison in result.comparisons), default=0.0)


def _noise(target: VerifyTarget, facts: VerifyState, result: TrialResult) -> Finding:
    worst = max(result.comparisons, key=lambda one: one.noise or 0.0)
    finding = Finding(
        EAGER_VS_GRAPH_NUMERIC_NOISE,
        f"{worst.name} differs by up to {worst.noise or 0.0:.3g} between eager runs with the same "
        "state and random numbers: a replay may differ as much",
        phase="forward",
        severity=NOTE,
    )
    try:
        placed = first_noisy(target, facts.runner, facts.captured)
    except (RuntimeError, MemoryError):
        # Not enough memory for the results of all ops: the note has no line.
        placed = None
    if placed is None:
        return finding
    return msgspec.structs.replace(
        finding, frames=placed.frames, module=placed.module, forward=placed.forward
    )


def _report_kept_outputs(result: TrialResult, log: VerifyLog) -> None:
    for name in sorted(result.only_eager)[:1]:
        log.add(
            Finding(
                OUTPUT_OVERWRITTEN_BY_NEXT_REPLAY,
                f"every call keeps a tensor under a new name ({name}): a replay adds none, and "
                "overwrites the one of the capture",
                severity=NOTE,
                phase="replay",
            )
        )


def first_not_finite(result: TrialResult) -> int | None:
    """The first iteration whose replay left a NaN or an infinity; None for none."""
    for number, values in enumerate(result.replay.values):
        if not all(is_finite(tensor) for tensor in values.values()):
            return number
    return None


def _report_ops(
    target: VerifyTarget, facts: VerifyState, results: list[TrialResult], log: VerifyLog
) -> None:
    differing = [result for result in results if result.differing]
    not_finite = [result for result in results if first_not_finite(result) is not None]
    if not differing and not not_finite:
        return
    try:
        divergence = Divergence(target, facts.runner)
        if differing:
            _report_first_difference(divergence, differing[0], results[0], log)
        for result in not_finite[:1]:
            iteration = first_not_finite(result) or 0
            node = divergence.first_not_finite(result.trial, iteration)
            if node is not None:
                log.note(
                    "first-non-finite-node",
                    f"{result.trial.iteration(iteration)}: the first NaN or infinity comes from "
                    f"{described(node)}",
                )
    except (CgtoolError, RuntimeError, MemoryError) as error:
        reason = error.failure.what if isinstance(error, CgtoolError) else first_line(error)
        log.note(
            "parting-unknown",
            f"the op that differs first is unknown, because a second capture failed: {reason}",
        )


def _report_first_difference(
    divergence: Divergence, result: TrialResult, captured: TrialResult, log: VerifyLog
) -> None:
    iteration, comparison = result.differing[0]
    noise = max(
        (comparison.relative or 0.0 for comparison in captured.comparisons if comparison.equal),
        default=0.0,
    )
    difference = divergence.find(result.trial, iteration, noise)
    if difference.node is None:
        log.note("first-parting-node", f"{comparison.name} differs: {difference.detail}")
        return
    log.note(
        "first-parting-node",
        f"{comparison.trial}: replay and eager first differ at {described(difference.node)}: "
        f"{difference.detail}",
    )


def described(node: Node) -> str:
    """An op with its line, its module, and for an op of a backward the forward line."""
    placed = node.placed
    text = node.text
    if placed.frames:
        text += f", {line_of(placed.frames)}"
    if placed.module:
        text += f", module {placed.module}"
    if placed.forward:
        text += f", forward {line_of(placed.forward)}"
    return text


def line_of(frames: tuple[Frame, ...]) -> str:
    """``model.py:12`` of the innermost frame."""
    return f"{frames[0].file}:{frames[0].line}" if frames else ""


@dataclass
class VerifyLog:
    """What verification reports: findings, notes, and what was looked at."""

    workload: Workload
    findings: FindingLog = field(default_factory=FindingLog)
    notes: list[Caveat] = field(default_factory=list)
    looked_at: list[str] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        """Add a finding; without a line, it gets that of the entry point."""
        entry = self.workload.entry_frame()
        if not finding.frames and entry is not None:
            finding = msgspec.structs.replace(finding, frames=(entry,))
        self.findings.add(finding)

    def note(self, code: str, text: str) -> None:
        self.notes.append(Caveat(code, text))

    def places(self) -> set[tuple[Frame, ...]]:
        """The innermost frames of the findings so far."""
        return {finding.frames[:1] for finding in self.findings}
