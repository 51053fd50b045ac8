"""``cgtool verify``: the trials, in order. The same on a GPU and on the simulated device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from cgtool.entry.attempt import Progress
from cgtool.entry.workload import Workload
from cgtool.hazards.collect import Findings
from cgtool.model.capture import Caveat
from cgtool.model.failure import CgtoolError, user_code
from cgtool.model.finding import NOTE, Comparison, Finding
from cgtool.model.options import VerifyOptions
from cgtool.verify import causes, replayable, state
from cgtool.verify.capturing_asked import Asked, asked
from cgtool.verify.compare import is_finite
from cgtool.verify.divergence import Divergence, Node
from cgtool.verify.inputs import fresh
from cgtool.verify.judging import Judged, judge
from cgtool.verify.perturbed import perturbed
from cgtool.verify.replayable import Replayable
from cgtool.verify.runs import ReplayFailedError, Run, Stage, Trial
from cgtool.verify.state import Snapshot, raw
from cgtool.verify.uninitialised import reads_uninitialised

NOISE_RUNS = 3
"""Eager runs that say how far eager is from itself."""
_FRESH_SEED = 20
_CHANGED = 1 + 1 / 64


@dataclass
class Outcome:
    """What verification found."""

    findings: tuple[Finding, ...]
    comparisons: tuple[Comparison, ...]
    notes: tuple[Caveat, ...]
    looked_at: tuple[str, ...]


@dataclass
class _Seen:
    """What is known of the workload before the trials."""

    stage: Stage
    captured: Trial
    liveness: causes.Liveness
    heard: Asked
    noise_counts: bool = True
    """Eager differs from itself by chance. False: because the host moves on."""
    deterministic: bool = True
    frozen: list[Finding] = field(default_factory=list)
    """Why the host moves on."""
    spoiled: list[Finding] = field(default_factory=list)
    """Memory that is read before it is written."""


def verify(target: Replayable, options: VerifyOptions, progress: Progress) -> Outcome:
    """Capture, and hold replays against eager.

    Raises CgtoolError when the code cannot be run or captured.
    """
    return _Procedure(target, options, progress).run()


class _Procedure:
    def __init__(self, target: Replayable, options: VerifyOptions, progress: Progress) -> None:
        self.target = target
        self.options = options
        self.progress = progress
        self.findings = Findings()
        self.notes: list[Caveat] = []
        self.looked: list[str] = []

    def run(self) -> Outcome:
        seen = self._prepare()
        judged: list[Judged] = []
        try:
            self._try(seen, judged)
        except ReplayFailedError as error:
            self._tell_failed_replay(seen, error)
        for each in judged:
            for one in each.noisy[:1]:
                self._note(
                    "too-noisy",
                    f"{each.trial.name}: eager differs from itself, run to run, by "
                    f"{one.noise:.3g} in {one.name}, so that equality there says little",
                )
        comparisons = tuple(one for each in judged for one in each.comparisons)
        return Outcome(self.findings.all(), comparisons, tuple(self.notes), tuple(self.looked))

    def _try(self, seen: _Seen, judged: list[Judged]) -> None:
        judged.append(self._captured(seen))
        exact = judged[0].exact
        for trial in self._trials(seen):
            self.progress(trial.name)
            judged.append(self._judge(seen, trial, rounding=not exact))
        if seen.liveness.uses_empty:
            self.progress("fill empty memory")
            seen.spoiled = reads_uninitialised(self.target, seen.stage, seen.captured)
        self._look_at_order(seen)
        self._explain(seen, judged)

    def _tell_failed_replay(self, seen: _Seen, error: ReplayFailedError) -> None:
        found = list(seen.liveness.findings([]))
        for finding in found:
            self.findings.add(finding)
        self._note("replay-failed", str(error))
        if not found:
            self.findings.add(
                Finding(
                    "input-freed-before-replay",
                    f"{error}; a graph that reads memory which is gone does that",
                    phase="replay",
                )
            )

    def _note(self, code: str, text: str) -> None:
        self.notes.append(Caveat(code, text))

    # What comes before the trials.

    def _prepare(self) -> _Seen:
        target = self.target
        with raw():
            cold = {
                name: tensor.detach().clone()
                for name, tensor in state.read(target.workload).items()
            }
        iterations = target.warm_up(self.progress)
        self.looked.append(f"{iterations} eager iterations as warm-up")
        self.progress("one iteration watched")
        liveness = causes.Liveness(target)
        self._tell_what_warm_up_changed(cold)
        del cold
        start = Snapshot(target.workload, target)
        with asked() as heard:
            target.capture(self.progress)
        if target.is_empty():
            raise _empty(target.workload)
        self.looked.append(", ".join(one.name for one in target.graphs()) + " captured")
        stage = Stage(target, start)
        target.spoil_free_memory()
        captured = Trial("captured inputs", self.options.replays)
        return _Seen(stage, captured, liveness, heard)

    def _tell_what_warm_up_changed(self, cold: dict[str, torch.Tensor]) -> None:
        now = state.read(self.target.workload)
        changed = [
            name
            for name, before in cold.items()
            if name in now and not state.unchanged(before, now[name])
        ]
        if changed:
            shown = ", ".join(changed[:3]) + (
                f" and {len(changed) - 3} more" if changed[3:] else ""
            )
            self._note(
                "warmup-mutates-state",
                f"warm-up ran for real and changed {shown}; here both sides start from what it "
                "left, in your program keep a copy and put it back",
            )

    # The trials.

    def _captured(self, seen: _Seen) -> Judged:
        """The inputs of the capture, several replays in a row."""
        stage, trial = seen.stage, seen.captured
        self.progress("eager, from the same state")
        runs = [stage.eager(trial) for _ in range(NOISE_RUNS)]
        self.progress("replays in a row")
        replay = stage.replay(trial)
        judged = judge(stage, trial, runs, replay)
        if any(one.noise != 0.0 for one in judged.comparisons):
            seen.deterministic = False
            eager = causes.Eager(self.target, stage)
            seen.frozen = causes.kept(eager.restarted(trial, trial), causes.FROZEN)
            if seen.frozen:
                seen.noise_counts = False
                judged = judge(stage, trial, runs, replay, noise_counts=False)
        if judged.parted and self._rounds(seen):
            judged = self._judge(seen, trial, rounding=True)
        self.looked.append(
            f"{trial.iterations} replays in a row against as many eager iterations from the same "
            f"state, eager {NOISE_RUNS} times"
        )
        return judged

    def _rounds(self, seen: _Seen) -> bool:
        """The replay may run other kernels than eager, which round otherwise. The simulated device
        runs the same ones."""
        return not self.target.simulated and seen.noise_counts

    def _judge(self, seen: _Seen, trial: Trial, *, rounding: bool = False) -> Judged:
        stage = seen.stage
        count = 1 if seen.deterministic or not seen.noise_counts else NOISE_RUNS
        runs = [stage.eager(trial) for _ in range(count)]
        replay = stage.replay(trial)
        judged = judge(stage, trial, runs, replay, noise_counts=seen.noise_counts)
        if judged.parted and rounding and self._rounds(seen):
            others = [stage.eager(one) for one in perturbed(self.target, stage, trial)]
            judged = judge(stage, trial, runs, replay, rounding=others)
        return judged

    def _trials(self, seen: _Seen) -> list[Trial]:
        stage, target = seen.stage, self.target
        inputs = list(stage.inputs)
        if target.workload.kind == "step":
            inputs += self._read_only(seen)
        generator = torch.Generator()
        generator.manual_seed(_FRESH_SEED)
        found: list[Trial] = []
        for number in range(self.options.trials):
            writes = []
            for _, tensor in inputs:
                start = stage.value_at_start(tensor, seen.captured)
                values = None if start is None else fresh(start, generator)
                if values is not None:
                    writes.append((tensor, values))
            if writes:
                found.append(Trial(f"fresh inputs {number + 1}", writes=writes))
        if found:
            self.looked.append(
                f"{len(found)} sets of fresh inputs for {len(found[0].writes)} tensors"
            )
        changed = [
            (tensor, value * _CHANGED)
            for _, tensor in replayable.parameters(target.workload)
            if (value := stage.start.value_of(tensor)) is not None
        ]
        if changed:
            found.append(Trial("changed parameters", writes=changed))
            self.looked.append(f"{len(changed)} parameters changed in place")
        return found

    def _read_only(self, seen: _Seen) -> list[tuple[str, torch.Tensor]]:
        """What a step reads by name and leaves alone: its inputs."""
        run = seen.stage.eager(Trial("one"))
        written = {name for _, name in run.values[0]}
        names = {id(tensor): name for name, tensor in state.read(self.target.workload).items()}
        return [
            (name, tensor)
            for name, tensor in replayable.closed_over(self.target.workload)
            if names.get(id(tensor)) not in written
        ]

    # The reasons.

    def _explain(self, seen: _Seen, judged: list[Judged]) -> None:
        eager = causes.Eager(self.target, seen.stage)
        parted = [one for one in judged if one.parted]
        found: list[Finding] = []
        if parted:
            self.progress("look for the reason")
            found = self._reasons(seen, eager, parted)
        rows = eager.in_a_row(seen.captured) if seen.liveness.dead or self._writes(seen) else []
        for finding in (*found, *seen.spoiled, *seen.liveness.findings([*found, *rows])):
            self.findings.add(finding)
        if self._writes(seen):
            for finding in causes.written_inputs(self._writes(seen), rows):
                self.findings.add(finding)
        for finding in self.target.missed(bool(parted)):
            self.findings.add(finding)
        self._tell_kept_outputs(seen, judged[0])
        self._tell_first_nodes(seen, judged, parted)
        known = {one.frames[:1] for one in self.findings}
        for finding in self.target.dead():
            if finding.frames[:1] not in known:
                self.findings.add(finding)

    def _writes(self, seen: _Seen) -> list[str]:
        arguments = {name for name, _ in seen.stage.inputs}
        return [name for name in seen.stage.written if name in arguments]

    def _reasons(self, seen: _Seen, eager: causes.Eager, parted: list[Judged]) -> list[Finding]:
        first = parted[0]
        iteration = first.parted[0][0]
        branches = list(
            causes.branches_on_capturing(self.target, seen.stage, seen.heard, seen.captured)
        )
        if branches:
            return branches
        found = seen.frozen or eager.frozen(first.trial, iteration, seen.captured)
        if found:
            return found
        return [] if seen.spoiled else list(self._of_memory(seen, first))

    def _of_memory(self, seen: _Seen, first: Judged) -> Sequence[Finding]:
        again = seen.stage.replay(first.trial)
        unequal = _unlike(first.replay, again)
        unwritten = first.replay.unwritten
        if unwritten:
            return [
                Finding(
                    "capture-does-not-execute",
                    f"no replay writes {unwritten[0]}: it holds what the capture left there",
                    phase="replay",
                    evidence=("it was filled before the replay, and still held that after it",),
                )
            ]
        if seen.deterministic and unequal:
            return [
                Finding(
                    "stale-accumulator-or-uninitialised",
                    f"two replays from the same inputs and the same state differ in {unequal[0]}, "
                    "and eager does not: the graph reads memory that an earlier replay wrote",
                    phase="replay",
                )
            ]
        return []

    def _tell_kept_outputs(self, seen: _Seen, judged: Judged) -> None:
        kept = sorted(judged.only_eager)
        if kept:
            self.findings.add(
                Finding(
                    "output-overwritten-by-next-replay",
                    f"every call keeps a tensor under a new name ({kept[0]}); replays add none, "
                    "and what the capture left there is overwritten by each",
                    severity=NOTE,
                    phase="replay",
                )
            )

    def _tell_first_nodes(self, seen: _Seen, judged: list[Judged], parted: list[Judged]) -> None:
        bad = [one for one in judged if _first_not_finite(one) is not None]
        if not parted and not bad:
            return
        try:
            divergence = Divergence(self.target, seen.stage)
        except (RuntimeError, MemoryError) as error:
            self._note("parting-unknown", f"the capture with all results kept failed: {error}")
            return
        if parted:
            iteration, comparison = parted[0].parted[0]
            relative = max(
                (one.relative or 0.0 for one in judged[0].comparisons if one.equal), default=0.0
            )
            parting = divergence.find(parted[0].trial, iteration, relative)
            if parting.node is None:
                self._note("first-parting-node", f"{comparison.name} parts: {parting.detail}")
            else:
                self._tell_node(
                    "first-parting-node",
                    f"{comparison.trial}: replay and eager part at",
                    parting.node,
                    parting.detail,
                )
        if bad:
            iteration = _first_not_finite(bad[0]) or 0
            node = divergence.first_not_finite(bad[0].trial, iteration)
            if node is not None:
                self._tell_node(
                    "first-non-finite-node",
                    f"{bad[0].trial.iteration(iteration)}: the first NaN or infinity is made by",
                    node,
                    "",
                )

    def _tell_node(self, code: str, lead: str, node: Node, detail: str) -> None:
        placed = node.placed
        where = f", {placed.frames[0].file}:{placed.frames[0].line}" if placed.frames else ""
        if placed.module:
            where += f", module {placed.module}"
        if placed.forward:
            where += f", forward {placed.forward[0].file}:{placed.forward[0].line}"
        self._note(code, f"{lead} {node.text}{where}" + (f": {detail}" if detail else ""))

    # Several graphs in one pool.

    def _look_at_order(self, seen: _Seen) -> None:
        target = self.target
        if target.simulated or len(target.workload.parts) < 2 or target.options.pool != "shared":
            return
        trial = Trial("another order", order=_one_by_one)
        judged = self._judge(seen, trial, rounding=True)
        if judged.parted:
            self.findings.add(
                Finding(
                    "shared-pool-replay-order",
                    f"replayed one callable after the other, {judged.parted[0][1].name} is wrong: "
                    "the graphs share a pool and must be replayed as they were captured, every "
                    "forward in order, then every backward in reverse",
                    severity=NOTE,
                    phase="replay",
                )
            )


def _empty(workload: Workload) -> CgtoolError:
    what = f"{workload.spec}: nothing was captured, the graph is empty"
    why = (
        "no work reached the capturing stream: the callable ran on the CPU, returned a cached "
        "result, or launched on another stream or device"
    )
    fix = (
        "check the device of the model and of its inputs, and that the callable computes anew on "
        "every call"
    )
    frames = workload.parts[0].frames
    finding = Finding("empty-graph", what, frames, phase="capture", fix=fix, evidence=(why,))
    return user_code(what, frames=frames, why=why, fix=fix, phase="capture", findings=(finding,))


def _one_by_one(graphs: Sequence[Any]) -> Sequence[Any]:
    """Each callable's forward and backward before the next; without backward, the last first."""
    if not any(one.phase == "backward" for one in graphs):
        return list(reversed(graphs))
    return sorted(graphs, key=lambda one: (one.callable, one.phase == "backward"))


def _unlike(one: Run, other: Run) -> list[str]:
    """Names of what two runs left differently."""
    return [
        name
        for values, again in zip(one.values, other.values, strict=True)
        for (kind, name), tensor in values.items()
        if (kind, name) in again and not state.unchanged(tensor, again[kind, name])
    ]


def _first_not_finite(judged: Judged) -> int | None:
    for number, values in enumerate(judged.replay.values):
        if not all(is_finite(one) for one in values.values()):
            return number
    return None
