"""Why and where replay and eager differ: causes are tried from the most to the least certain."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from cgtool.detectors.frozen_host_state import PYTHON_SIDE_EFFECTS_SKIPPED
from cgtool.detectors.generator_states import RNG_STATE_SET_IN_CAPTURE
from cgtool.detectors.reporting import FindingLog
from cgtool.devices.device import VerifyTarget
from cgtool.devices.stepping import StepFailedError
from cgtool.findings import code
from cgtool.jobs.verify import causes, randomness
from cgtool.jobs.verify.divergence import Divergence, at_first_noisy
from cgtool.jobs.verify.evidence import Run, Trial
from cgtool.jobs.verify.judge import Verdict
from cgtool.jobs.verify.liveness import Liveness
from cgtool.jobs.verify.orders import Orders
from cgtool.jobs.verify.runner import ReplayFailedError, TrialRunner
from cgtool.jobs.verify.uninitialized import reads_uninitialized
from cgtool.model.capture import Caveat, Frame
from cgtool.model.failure import CgtoolError
from cgtool.model.finding import NOTE, Finding
from cgtool.model.options import Progress, VerifyOptions
from cgtool.observe.capturing_queries import Queries
from cgtool.observe.raw_tensors import unchanged
from cgtool.program.boundary import first_line

CAPTURE_DOES_NOT_EXECUTE = code("capture-does-not-execute")
EAGER_VS_GRAPH_NUMERIC_NOISE = code("eager-vs-graph-numeric-noise")
INPUT_FREED_BEFORE_REPLAY = code("input-freed-before-replay")
OUTPUT_OVERWRITTEN_BY_NEXT_REPLAY = code("output-overwritten-by-next-replay")
RNG_FROZEN_SEED = code("rng-frozen-seed")
STALE_ACCUMULATOR_OR_UNINITIALIZED = code("stale-accumulator-or-uninitialized")


@dataclass
class Log:
    """Findings, notes and progress of a verification, collected for the report."""

    progress: Progress
    entry: Frame | None
    """Where the entry point is defined: for findings that have no line."""
    findings: FindingLog = field(default_factory=FindingLog)
    notes: list[Caveat] = field(default_factory=list)
    looked_at: list[str] = field(default_factory=list)
    not_restored: list[str] = field(default_factory=list)
    """Objects because of which eager runs may begin in different states, in words."""

    def add(self, *findings: Finding) -> None:
        for finding in findings:
            frames = finding.frames or ((self.entry,) if self.entry is not None else ())
            self.findings.add(replace(finding, frames=frames))

    def note(self, code: str, text: str) -> None:
        if (caveat := Caveat(code, text)) not in self.notes:
            self.notes.append(caveat)


@dataclass(frozen=True)
class Subject:
    """A captured workload, and what was observed before and during the capture."""

    target: VerifyTarget
    options: VerifyOptions
    runner: TrialRunner
    liveness: Liveness
    queries: Queries
    trial: Trial
    """Run with the inputs of the capture."""
    log: Log

    @property
    def other_kernels(self) -> bool:
        """The replay may run other kernels than eager. The simulated device runs the same ones,
        unless the code asks whether it is being captured."""
        return self.target.has_kernels or bool(self.queries)


def explain(subject: Subject, verdicts: Sequence[Verdict]) -> None:
    """Report every finding, and the ops at which replay and eager first differ."""
    log, runner, liveness = subject.log, subject.runner, subject.liveness
    facts = verdicts[-1].evidence.facts
    differing = [verdict for verdict in verdicts if verdict.differing]
    uninitialized: list[Finding] = []
    if liveness.uses_empty:
        log.progress("fill empty memory")
        uninitialized = reads_uninitialized(runner, subject.trial)
    log.progress("look for the reason" if differing else "look for values that the graph keeps")
    reasons: list[Finding] = []
    if differing:
        reasons = _reasons(subject, differing[0], facts.frozen, uninitialized)
    consecutive = causes.consecutive(runner, subject.trial, 1)
    hidden: list[Finding] = []
    if not differing:
        # These replays may be right by chance: a branch that is rarely taken, a draw of a coin.
        # What differs from one eager run to the next may be drawn, as the order of a sum is.
        hidden = causes.hidden(consecutive)
        log.add(*(each for each in hidden if each.code != RNG_FROZEN_SEED or not facts.is_noisy))
    changed = {
        name
        for verdict in verdicts
        for iteration in verdict.evidence.replay.iterations
        for _, name in iteration.changed()
    }
    written = [name for name, _ in runner.inputs if name in changed]
    log.add(*liveness.joined([*reasons, *consecutive], reasons))
    log.add(*causes.side_effects(consecutive, [*reasons, *hidden]))
    log.add(*(finding for finding in uninitialized if finding not in reasons))
    if written:
        log.add(*causes.written_inputs(written, consecutive))
    # Finding such work runs the code again, from the state of the capture.
    runner.begin_eager(subject.trial)
    work = subject.target.uncaptured_work(bool(differing))
    log.add(*work)
    orders = Orders(runner, subject.trial)
    missing = _missing_edge(subject, orders)
    if orders.failed:
        log.add(*missing)
        return
    if log.entry is not None and any(each.code == RNG_STATE_SET_IN_CAPTURE for each in work):
        # The line that sets the state is known.
        log.findings.drop(RNG_FROZEN_SEED, (log.entry,))
    is_named = any(each.code == PYTHON_SIDE_EFFECTS_SKIPPED for each in log.findings)
    kept = [] if is_named else verdicts[0].kept_by_each_call()
    for name in kept[:1]:
        log.add(
            Finding(
                OUTPUT_OVERWRITTEN_BY_NEXT_REPLAY,
                f"every call keeps a tensor under a new name ({name}): a replay adds none, "
                "and overwrites the one from the capture",
                severity=NOTE,
                phase="replay",
            )
        )
    if facts.is_noisy and not uninitialized:
        log.not_restored = runner.not_restored()
        if not log.not_restored:
            log.add(_noise(subject, verdicts))
    _report_ops(subject, verdicts)
    log.add(*missing)
    known = {finding.frames[:1] for finding in log.findings}
    freed = subject.target.freed_inputs(bool(differing) and not log.findings)
    log.add(*(finding for finding in freed if finding.frames[:1] not in known))


def _missing_edge(subject: Subject, orders: Orders) -> list[Finding]:
    count = subject.options.orders
    if not orders.graphs or not count:
        return []
    capture, _ = subject.target.described()  # after a fault the driver says nothing anymore
    subject.log.progress("run the nodes in other orders")
    missing = orders.find(capture, count, subject.log.progress)
    subject.log.looked_at.append(orders.looked_at)
    return missing


def explain_failed_replay(subject: Subject, error: ReplayFailedError) -> None:
    """Report what the failed replay may have read."""
    findings = list(subject.liveness.findings()) or [
        Finding(
            INPUT_FREED_BEFORE_REPLAY,
            f"{error}; a graph that reads freed memory can fail like this",
            phase="replay",
        )
    ]
    subject.log.add(*findings)
    subject.log.note("replay-failed", str(error))


def _reasons(
    subject: Subject, first: Verdict, frozen: Sequence[Finding], uninitialized: list[Finding]
) -> list[Finding]:
    """The findings of the first cause that applies to the first trial that differs."""
    runner, trial = subject.runner, first.evidence.trial
    iteration = first.differing[0].iteration
    causes_in_order: list[Callable[[], Iterable[Finding]]] = [
        lambda: causes.branches_on_capturing(runner, subject.queries, subject.trial),
        lambda: frozen or causes.frozen(runner, trial, iteration, subject.trial),
        lambda: uninitialized,
        lambda: _unwritten(first.evidence.replay),
        lambda: randomness.frozen(runner, trial),
        lambda: _unlike_itself(subject, first),
    ]
    if trial is not subject.trial or iteration > 0:
        # The first replay is right, so what the capture ran is too.
        causes_in_order.append(causes_in_order.pop(0))
    return next((findings for find in causes_in_order if (findings := list(find()))), [])


def _unwritten(replay: Run) -> list[Finding]:
    return [
        Finding(
            CAPTURE_DOES_NOT_EXECUTE,
            f"no replay writes {name}: it keeps what the capture left in it",
            phase="replay",
            evidence=("it was overwritten before the replay, and the replay did not change it",),
        )
        for _, name in replay.unwritten[:1]
    ]


def _unlike_itself(subject: Subject, first: Verdict) -> list[Finding]:
    """Two replays of a trial differ, though eager runs do not."""
    if first.evidence.facts.differs:
        return []
    replay, again = first.evidence.replay, subject.runner.replay(first.evidence.trial)
    names = [
        key[1]
        for iteration, repeated in zip(replay.iterations, again.iterations, strict=True)
        for key, tensor in iteration.changed().items()
        if key in repeated.after and not unchanged(tensor, repeated.after[key])
    ]
    return [
        Finding(
            STALE_ACCUMULATOR_OR_UNINITIALIZED,
            f"two replays with the same inputs and state differ in {name}, and two eager runs "
            "do not: the graph reads memory that an earlier replay wrote",
            phase="replay",
        )
        for name in names[:1]
    ]


def _noise(subject: Subject, verdicts: Sequence[Verdict]) -> Finding:
    worst = max(
        (each.comparison for verdict in verdicts for each in verdict.compared),
        key=lambda comparison: comparison.noise or 0.0,
    )
    finding = Finding(
        EAGER_VS_GRAPH_NUMERIC_NOISE,
        f"{worst.name} differs by up to {worst.noise or 0.0:.3g} between eager runs with the "
        "same state and random numbers: a replay may differ as much",
        phase="forward",
        severity=NOTE,
    )
    # Without memory for the results of all ops the note has no line.
    with contextlib.suppress(RuntimeError, MemoryError):
        return at_first_noisy(finding, subject.runner, subject.trial)
    return finding


def _report_ops(subject: Subject, verdicts: Sequence[Verdict]) -> None:
    """Notes on the first op that differs, and on the first whose results are not finite."""
    differing = [verdict for verdict in verdicts if verdict.differing]
    not_finite = [
        (verdict.evidence.trial, iteration)
        for verdict in verdicts
        if (iteration := verdict.evidence.replay.first_not_finite()) is not None
    ]
    if not differing and not not_finite:
        return
    noise = [each.comparison.relative or 0.0 for each in verdicts[0].compared
             if each.comparison.equal]  # fmt: skip
    try:
        subject.runner.begin_eager(Trial("probe"))
        divergence = Divergence(subject.runner, subject.target.followed())
        for verdict in differing[:1]:
            iteration, comparison = verdict.differing[0].iteration, verdict.differing[0].comparison
            parting = divergence.find(
                verdict.evidence.trial,
                iteration,
                max(noise, default=0.0),
                (comparison.kind, comparison.name),
            )
            assert parting is not None
            where = f"{comparison.name} differs"
            if parting.op is not None:
                where = f"replay and eager first differ at {parting.op}"
            text = "; ".join((f"{comparison.trial}: {where}: {parting.detail}", *parting.given))
            subject.log.note("first-parting-node", text)
        for trial, iteration in not_finite[:1]:
            op = divergence.first_not_finite(trial, iteration)
            if op is not None:
                subject.log.note(
                    "first-non-finite-node",
                    f"{trial.iteration(iteration)}: the first NaN or infinity comes from {op}",
                )
    except (CgtoolError, StepFailedError, RuntimeError, MemoryError) as error:
        subject.log.note(
            "parting-unknown",
            "the op that differs first is unknown, because a second capture failed: "
            f"{first_line(error)}",
        )
