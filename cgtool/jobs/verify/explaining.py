"""Why numbers part, and where: the causes are tried from the plainest to the last resort."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from cgtool.detectors.reporting import FindingLog
from cgtool.findings.registry import code
from cgtool.jobs.verify import causes, randomness, state
from cgtool.jobs.verify.causes import Asked
from cgtool.jobs.verify.compare import Judged, is_finite
from cgtool.jobs.verify.divergence import Divergence, Node, first_noisy
from cgtool.jobs.verify.runs import Run, Trial, TrialRunner, VerifyTarget
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
    """What is known of the workload when the trials begin, and what they add."""

    stage: TrialRunner
    captured: Trial
    """The trial with the inputs of the capture."""
    liveness: causes.Liveness
    asked: Asked
    noise_counts: bool = True
    """Eager differs from itself by chance. False: because the host moves on."""
    deterministic: bool = True
    frozen: list[Finding] = field(default_factory=list)
    """Why the host moves on."""
    random: set[tuple[str, str]] = field(default_factory=set)
    """(kind, name) of results that are random, and drawn otherwise by a replay."""
    spoiled: list[Finding] = field(default_factory=list)
    """Memory that is read before it is written."""


def explain(
    target: VerifyTarget, seen: VerifyState, judged: list[Judged], told: Told, progress: Progress
) -> None:
    """Every finding, and the nodes where replay and eager part."""
    eager = causes.Eager(target, seen.stage)
    parted = [one for one in judged if one.parted]
    found: list[Finding] = []
    if parted:
        progress("look for the reason")
        found = list(_reasons(target, seen, eager, parted[0]))
    arguments = {name for name, _ in seen.stage.inputs}
    written = [name for name in seen.stage.written if name in arguments]
    rows = eager.in_a_row(seen.captured) if written or seen.liveness.dead else []
    for finding in seen.liveness.joined([*found, *rows], found):
        told.add(finding)
    for finding in seen.spoiled:
        if finding not in found:
            told.add(finding)
    if written:
        for finding in causes.written_inputs(written, rows):
            told.add(finding)
    # Where the code is run again to find them, it starts from the state of the capture.
    seen.stage.begin_eager(seen.captured)
    for finding in target.missed(bool(parted)):
        told.add(finding)
    _tell_kept_outputs(judged[0], told)
    if seen.noise_counts and not seen.deterministic and not seen.spoiled:
        told.add(_noise(target, seen, max(judged, key=_worst_noise)))
    _tell_nodes(target, seen, judged, told)
    known = told.places()
    for finding in target.dead():
        if finding.frames[:1] not in known:
            told.add(finding)


def _reasons(
    target: VerifyTarget, seen: VerifyState, eager: causes.Eager, first: Judged
) -> Iterator[Finding]:
    """The first kind of cause that fits."""
    for kind in (
        lambda: causes.branches_on_capturing(target, seen.stage, seen.asked, seen.captured),
        lambda: iter(seen.frozen or eager.frozen(first.trial, first.parted[0][0], seen.captured)),
        lambda: iter(seen.spoiled),
        lambda: _unwritten(first),
        lambda: randomness.frozen(target, seen.stage, first.trial),
        lambda: _unlike_itself(seen, first),
    ):
        found = list(kind())
        if found:
            yield from found
            return


def _unwritten(first: Judged) -> Iterator[Finding]:
    for name in first.replay.unwritten[:1]:
        yield Finding(
            CAPTURE_DOES_NOT_EXECUTE,
            f"no replay writes {name}: it holds what the capture left there",
            phase="replay",
            evidence=("it was overwritten before the replay, and nothing had changed after it",),
        )


def _unlike_itself(seen: VerifyState, first: Judged) -> Iterator[Finding]:
    if not seen.deterministic:
        return
    for name in _differing(first.replay, seen.stage.replay(first.trial))[:1]:
        yield Finding(
            STALE_ACCUMULATOR_OR_UNINITIALISED,
            f"two replays from the same inputs and the same state differ in {name}, and eager "
            "does not: the graph reads memory that an earlier replay wrote",
            phase="replay",
        )


def _differing(one: Run, other: Run) -> list[str]:
    """Names of what two runs left differently."""
    return [
        name
        for values, again in zip(one.values, other.values, strict=True)
        for (kind, name), tensor in values.items()
        if (kind, name) in again and not state.unchanged(tensor, again[kind, name])
    ]


def _worst_noise(judged: Judged) -> float:
    return max((one.noise or 0.0 for one in judged.comparisons), default=0.0)


def _noise(target: VerifyTarget, seen: VerifyState, judged: Judged) -> Finding:
    worst = max(judged.comparisons, key=lambda one: one.noise or 0.0)
    finding = Finding(
        EAGER_VS_GRAPH_NUMERIC_NOISE,
        f"eager differs from itself by up to {worst.noise or 0.0:.3g} in {worst.name}, from the "
        "same state and the same random numbers: replays are held against that",
        phase="forward",
        severity=NOTE,
    )
    try:
        placed = first_noisy(target, seen.stage, seen.captured)
    except (RuntimeError, MemoryError):
        # No memory for the results of all ops: the note goes without its line.
        placed = None
    if placed is None:
        return finding
    return msgspec.structs.replace(
        finding, frames=placed.frames, module=placed.module, forward=placed.forward
    )


def _tell_kept_outputs(judged: Judged, told: Told) -> None:
    for name in sorted(judged.only_eager)[:1]:
        told.add(
            Finding(
                OUTPUT_OVERWRITTEN_BY_NEXT_REPLAY,
                f"every call keeps a tensor under a new name ({name}); replays add none, and what "
                "the capture left there is overwritten by each",
                severity=NOTE,
                phase="replay",
            )
        )


def first_not_finite(judged: Judged) -> int | None:
    """The first iteration of which the replays left a NaN or an infinity."""
    for number, values in enumerate(judged.replay.values):
        if not all(is_finite(one) for one in values.values()):
            return number
    return None


def _tell_nodes(target: VerifyTarget, seen: VerifyState, judged: list[Judged], told: Told) -> None:
    parted = [one for one in judged if one.parted]
    bad = [one for one in judged if first_not_finite(one) is not None]
    if not parted and not bad:
        return
    try:
        divergence = Divergence(target, seen.stage)
        if parted:
            _tell_parting(divergence, parted[0], judged[0], told)
        for one in bad[:1]:
            iteration = first_not_finite(one) or 0
            node = divergence.first_not_finite(one.trial, iteration)
            lead = f"{one.trial.iteration(iteration)}: the first NaN or infinity is made by"
            if node is not None:
                told.note("first-non-finite-node", f"{lead} {described(node)}")
    except (CgtoolError, RuntimeError, MemoryError) as error:
        told.note(
            "parting-unknown", f"a capture with all results kept is not to be had: {_why(error)}"
        )


def _why(error: Exception) -> str:
    return error.failure.what if isinstance(error, CgtoolError) else first_line(error)


def _tell_parting(divergence: Divergence, parted: Judged, first: Judged, told: Told) -> None:
    iteration, comparison = parted.parted[0]
    noise = max((one.relative or 0.0 for one in first.comparisons if one.equal), default=0.0)
    parting = divergence.find(parted.trial, iteration, noise)
    if parting.node is None:
        told.note("first-parting-node", f"{comparison.name} parts: {parting.detail}")
        return
    told.note(
        "first-parting-node",
        f"{comparison.trial}: replay and eager part at {described(parting.node)}: {parting.detail}",
    )


def described(node: Node) -> str:
    """An op with its line, its module, and in backward the forward line."""
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
class Told:
    """Findings, notes, and what was looked at."""

    workload: Workload
    findings: FindingLog = field(default_factory=FindingLog)
    notes: list[Caveat] = field(default_factory=list)
    looked: list[str] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        """A finding that no line is known of gets that of the entry point."""
        entry = self.workload.entry_frame()
        if not finding.frames and entry is not None:
            finding = msgspec.structs.replace(finding, frames=(entry,))
        self.findings.add(finding)

    def note(self, code: str, text: str) -> None:
        self.notes.append(Caveat(code, text))

    def places(self) -> set[tuple[Frame, ...]]:
        """The innermost frames of the findings so far."""
        return {one.frames[:1] for one in self.findings}
