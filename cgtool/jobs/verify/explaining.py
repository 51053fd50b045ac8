"""Why and where replay and eager differ: causes are tried from the most to the least certain."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import msgspec

from cgtool.detectors.reporting import FindingLog
from cgtool.devices.device import VerifyTarget
from cgtool.findings import code
from cgtool.jobs.verify import causes, randomness, state
from cgtool.jobs.verify.compare import TrialResult
from cgtool.jobs.verify.divergence import Divergence, at_first_noisy
from cgtool.jobs.verify.liveness import Liveness
from cgtool.jobs.verify.runs import Run, Trial, TrialRunner
from cgtool.model.capture import Caveat
from cgtool.model.failure import CgtoolError
from cgtool.model.finding import NOTE, Finding
from cgtool.model.options import Progress, VerifyOptions
from cgtool.program.boundary import first_line

CAPTURE_DOES_NOT_EXECUTE = code("capture-does-not-execute")
EAGER_VS_GRAPH_NUMERIC_NOISE = code("eager-vs-graph-numeric-noise")
OUTPUT_OVERWRITTEN_BY_NEXT_REPLAY = code("output-overwritten-by-next-replay")
STALE_ACCUMULATOR_OR_UNINITIALISED = code("stale-accumulator-or-uninitialised")


@dataclass
class Verification:
    """The known facts about a workload, and the report."""

    target: VerifyTarget
    options: VerifyOptions
    progress: Progress
    findings: FindingLog = field(default_factory=FindingLog)
    notes: list[Caveat] = field(default_factory=list)
    looked_at: list[str] = field(default_factory=list)
    results: list[TrialResult] = field(default_factory=list)
    captured: Trial = field(init=False)
    """The trial with the inputs of the capture."""
    runner: TrialRunner = field(init=False)
    liveness: Liveness = field(init=False)
    queries: causes.Queries = field(init=False)
    noise_counts: bool = True
    """True when eager differs from itself by chance, False when the host changes a number."""
    deterministic: bool = True
    frozen: list[Finding] = field(default_factory=list)
    """Findings on the numbers that the host changes."""
    random: set[tuple[str, str]] = field(default_factory=set)
    """(kind, name) of random results for which a replay draws other numbers than eager."""
    spoiled: list[Finding] = field(default_factory=list)
    """Memory that is read before it is written."""

    def add(self, *findings: Finding) -> None:
        """Report findings; one without a line gets the line of the entry point."""
        entry = self.target.workload.entry_frame()
        for finding in findings:
            frames = finding.frames or ((entry,) if entry is not None else ())
            self.findings.add(msgspec.structs.replace(finding, frames=frames))

    def note(self, code: str, text: str) -> None:
        if (caveat := Caveat(code, text)) not in self.notes:
            self.notes.append(caveat)

    def explain(self) -> None:
        """Report every finding, and the ops at which replay and eager first differ."""
        eager = causes.Eager(self.runner)
        differing = [result for result in self.results if result.differing]
        reasons: list[Finding] = []
        if differing:
            self.progress("look for the reason")
            reasons = self._reasons(eager, differing[0])
        arguments = {name for name, _ in self.runner.inputs}
        written = [name for name in self.runner.written if name in arguments]
        consecutive: list[Finding] = []
        if written or self.liveness.freed_inputs:
            consecutive = eager.consecutive(self.captured)
        self.add(*self.liveness.joined([*reasons, *consecutive], reasons))
        self.add(*(finding for finding in self.spoiled if finding not in reasons))
        if written:
            self.add(*causes.written_inputs(written, consecutive))
        # Finding such work runs the code again, from the state of the capture.
        self.runner.begin_eager(self.captured)
        self.add(*self.target.uncaptured_work(bool(differing)))
        for name in sorted(self.results[0].only_eager)[:1]:
            self.add(
                Finding(
                    OUTPUT_OVERWRITTEN_BY_NEXT_REPLAY,
                    f"every call keeps a tensor under a new name ({name}): a replay adds none, and "
                    "overwrites the one of the capture",
                    severity=NOTE,
                    phase="replay",
                )
            )
        if self.noise_counts and not self.deterministic and not self.spoiled:
            self._report_noise()
        self._report_ops(differing)
        known = {finding.frames[:1] for finding in self.findings}
        freed = self.target.freed_inputs()
        self.add(*(finding for finding in freed if finding.frames[:1] not in known))

    def _reasons(self, eager: causes.Eager, first: TrialResult) -> list[Finding]:
        """The findings of the first cause that applies."""
        iteration = first.differing[0].iteration
        causes_in_order = [
            lambda: causes.branches_on_capturing(self.runner, self.queries, self.captured),
            lambda: self.frozen or eager.frozen(first.trial, iteration, self.captured),
            lambda: self.spoiled,
            lambda: _unwritten(first),
            lambda: randomness.frozen(self.runner, first.trial),
            lambda: self._unlike_itself(first),
        ]
        if first.trial is not self.captured or iteration > 0:
            # The first replay is right, so what the capture ran is too.
            causes_in_order.append(causes_in_order.pop(0))
        return next((findings for find in causes_in_order if (findings := list(find()))), [])

    def _unlike_itself(self, first: TrialResult) -> list[Finding]:
        if not self.deterministic:
            return []
        return [
            Finding(
                STALE_ACCUMULATOR_OR_UNINITIALISED,
                f"two replays with the same inputs and state differ in {name}, and two eager runs "
                "do not: the graph reads memory that an earlier replay wrote",
                phase="replay",
            )
            for name in _differing(first.replay, self.runner.replay(first.trial))[:1]
        ]

    def _report_noise(self) -> None:
        worst = max(
            (comparison for result in self.results for comparison in result.comparisons),
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
            finding = at_first_noisy(finding, self.runner, self.captured)
        self.add(finding)

    def _report_ops(self, differing: list[TrialResult]) -> None:
        not_finite = [
            (result, iteration)
            for result in self.results
            if (iteration := result.replay.first_not_finite()) is not None
        ]
        if not differing and not not_finite:
            return
        try:
            divergence = Divergence(self.runner)
            if differing:
                self._report_first_difference(divergence, differing[0])
            for result, iteration in not_finite[:1]:
                op = divergence.first_not_finite(result.trial, iteration)
                if op is not None:
                    self.note(
                        "first-non-finite-node",
                        f"{result.trial.iteration(iteration)}: the first NaN or infinity comes "
                        f"from {op}",
                    )
        except (CgtoolError, RuntimeError, MemoryError) as error:
            self.note(
                "parting-unknown",
                "the op that differs first is unknown, because a second capture failed: "
                f"{first_line(error)}",
            )

    def _report_first_difference(self, divergence: Divergence, result: TrialResult) -> None:
        iteration, comparison, _ = result.differing[0]
        captured = self.results[0].comparisons
        noise = max((each.relative or 0.0 for each in captured if each.equal), default=0.0)
        difference = divergence.find(result.trial, iteration, noise)
        text = f"{comparison.name} differs: {difference.detail}"
        if difference.op is not None:
            text = (
                f"{comparison.trial}: replay and eager first differ at {difference.op}: "
                f"{difference.detail}"
            )
        self.note("first-parting-node", text)


def _unwritten(first: TrialResult) -> list[Finding]:
    return [
        Finding(
            CAPTURE_DOES_NOT_EXECUTE,
            f"no replay writes {name}: it keeps what the capture left in it",
            phase="replay",
            evidence=("it was overwritten before the replay, and the replay did not change it",),
        )
        for name in first.replay.unwritten[:1]
    ]


def _differing(run: Run, other: Run) -> list[str]:
    """Names of the tensors that differ between two runs."""
    return [
        name
        for values, again in zip(run.values, other.values, strict=True)
        for (kind, name), tensor in values.items()
        if (kind, name) in again and not state.unchanged(tensor, again[kind, name])
    ]
