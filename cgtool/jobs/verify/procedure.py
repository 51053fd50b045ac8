"""``cgtool verify``: the trials, in order. The same on a GPU and on the simulated device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cgtool.detectors import compare_iterations
from cgtool.findings.registry import code
from cgtool.jobs.verify import causes, randomness, state
from cgtool.jobs.verify.causes import asked
from cgtool.jobs.verify.compare import Judged, judge
from cgtool.jobs.verify.explaining import Told, VerifyState, explain
from cgtool.jobs.verify.inputs import fresh, perturbed
from cgtool.jobs.verify.runs import (
    ReplayFailedError,
    Trial,
    TrialRunner,
    VerifyTarget,
    autocast_caches,
    closed_over,
    eager_iteration,
    float_parameters,
)
from cgtool.jobs.verify.state import Snapshot, raw
from cgtool.jobs.verify.watching import reads_uninitialised
from cgtool.model.capture import Caveat
from cgtool.model.failure import CgtoolError, user_code
from cgtool.model.finding import NOTE, Comparison, Finding
from cgtool.model.options import Progress, VerifyOptions
from cgtool.program.workload import Workload

EMPTY_GRAPH = code("empty-graph")
INPUT_FREED_BEFORE_REPLAY = code("input-freed-before-replay")
RNG_SEQUENCE_DIFFERS_FROM_EAGER = code("rng-sequence-differs-from-eager")
SHARED_POOL_REPLAY_ORDER = code("shared-pool-replay-order")
WARMUP_MUTATES_STATE = code("warmup-mutates-state")

NOISE_RUNS = 4
"""Eager runs that say how far eager is from itself, where two are not enough."""
MANY_RUNS = 14
"""As many where eager is noisy and the replay still parts: of four runs, two in a hundred replays
that are right lie further out than twice their spread (seen with sums in random order)."""
_FRESH_SEED = 20
_CHANGED = 1 + 1 / 64


@dataclass
class Outcome:
    """What verification found."""

    findings: tuple[Finding, ...]
    comparisons: tuple[Comparison, ...]
    notes: tuple[Caveat, ...]
    looked_at: tuple[str, ...]


def verify(target: VerifyTarget, options: VerifyOptions, progress: Progress) -> Outcome:
    """Capture, and hold replays against eager.

    Raises CgtoolError when the code cannot be run or captured.
    """
    return _Procedure(target, options, progress).run()


class _Procedure:
    def __init__(self, target: VerifyTarget, options: VerifyOptions, progress: Progress) -> None:
        self.target = target
        self.options = options
        self.progress = progress
        self.told = Told(target.workload)

    def run(self) -> Outcome:
        seen = self._prepare()
        judged: list[Judged] = []
        try:
            self._try(seen, judged)
        except ReplayFailedError as error:
            self._tell_failed_replay(seen, error)
        for each in judged:
            for one in each.noisy[:1]:
                self.told.note(
                    "too-noisy",
                    f"{each.trial.name}: eager differs from itself, run to run, by "
                    f"{one.noise:.3g} in {one.name}, so that equality there says little",
                )
        told = self.told
        comparisons = tuple(one for each in judged for one in each.comparisons)
        return Outcome(told.findings.all(), comparisons, tuple(told.notes), tuple(told.looked))

    def _try(self, seen: VerifyState, judged: list[Judged]) -> None:
        judged.append(self._captured(seen))
        if seen.liveness.uses_empty:
            self.progress("fill empty memory")
            seen.spoiled = reads_uninitialised(self.target, seen.stage, seen.captured)
        exact = judged[0].exact
        for trial in self._trials(seen):
            self.progress(trial.name)
            judged.append(self._judge(seen, trial, rounding=not exact))
        self._look_at_order(seen)
        explain(self.target, seen, judged, self.told, self.progress)

    def _tell_failed_replay(self, seen: VerifyState, error: ReplayFailedError) -> None:
        found = list(seen.liveness.findings())
        for finding in found:
            self.told.add(finding)
        self.told.note("replay-failed", str(error))
        if not found:
            self.told.add(
                Finding(
                    INPUT_FREED_BEFORE_REPLAY,
                    f"{error}; a graph that reads memory which is gone does that",
                    phase="replay",
                )
            )

    # What comes before the trials.

    def _prepare(self) -> VerifyState:
        target = self.target
        with raw():
            cold = {
                name: tensor.detach().clone()
                for name, tensor in state.read(target.workload).items()
            }
        iterations = target.warm_up(self.progress)
        self.told.looked.append(f"{iterations} eager iterations as warm-up")
        self.progress("one iteration watched")
        liveness = causes.Liveness(target)
        if autocast_caches():
            # The cache as warm-up leaves it is what a capture finds.
            eager_iteration(target, keep_casts=True)
        self._tell_what_warm_up_changed(cold)
        del cold
        start = Snapshot(target.workload, target.device)
        with asked() as questions:
            target.capture(self.progress)
        if target.is_empty():
            raise _empty(target.workload)
        self.told.looked.append(
            ", ".join(one.name for one in target.session.captured) + " captured"
        )
        stage = TrialRunner(target, start)
        target.device.overwrite_free_memory()
        captured = Trial("captured inputs", self.options.replays)
        return VerifyState(stage, captured, liveness, questions)

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
            self.told.note(
                WARMUP_MUTATES_STATE,
                f"warm-up ran for real and changed {shown}; here both sides start from what it "
                "left, in your program keep a copy and put it back",
            )

    # The trials.

    def _captured(self, seen: VerifyState) -> Judged:
        """The inputs of the capture, several replays in a row."""
        stage, trial = seen.stage, seen.captured
        self.progress("eager, from the same state")
        runs = [stage.eager(trial) for _ in range(2)]
        self.progress("replays in a row")
        replay = stage.replay(trial)
        judged = judge(stage, trial, runs, replay)
        if judged.parted or _noisy(judged):
            # Two runs may agree by chance.
            runs += [stage.eager(trial) for _ in range(NOISE_RUNS - len(runs))]
            judged = judge(stage, trial, runs, replay)
        if _noisy(judged):
            self._is_noise(seen, trial)
            if not seen.noise_counts:
                judged = judge(stage, trial, runs, replay, noise_counts=False)
            judged = self._with_more_runs(seen, judged)
        if judged.parted and self._rounds(seen):
            judged = self._judge(seen, trial, rounding=True)
        if judged.parted and self._rounds(seen):
            judged = self._by_distribution(seen, judged)
        self.told.looked.append(
            f"{trial.iterations} replays in a row against as many eager iterations from the same "
            f"state, eager {len(runs)} times"
        )
        return judged

    def _is_noise(self, seen: VerifyState, trial: Trial) -> None:
        """Eager differs from itself: by chance, or because the host moves a number that it uses,
        which is no noise."""
        seen.deterministic = False
        eager = causes.Eager(self.target, seen.stage)
        seen.frozen = causes.kept(eager.restarted(trial, trial), compare_iterations.FROZEN)
        seen.noise_counts = not seen.frozen

    def _rounds(self, seen: VerifyState) -> bool:
        """The replay may run other kernels than eager, which round otherwise. The simulated device
        runs the same ones, unless the code asks whether it is captured."""
        same = self.target.simulated and not seen.asked.chains
        return seen.noise_counts and not same

    def _by_distribution(self, seen: VerifyState, judged: Judged) -> Judged:
        """Random results are compared by what they are drawn from, where the draws differ."""
        keys = {(one.kind, one.name) for _, one in judged.parted}
        if any(kind == "state" for kind, _ in keys):
            return judged
        if not randomness.alike(self.target, seen.stage, seen.captured, keys):
            return judged
        self.told.note(
            RNG_SEQUENCE_DIFFERS_FROM_EAGER,
            f"{judged.parted[0][1].name} is random: from the same seed a replay draws other "
            f"numbers than eager, with the same mean and magnitude over {randomness.SEEDS} seeds",
        )
        seen.random = keys
        return judged.accepting(keys)

    def _judge(self, seen: VerifyState, trial: Trial, *, rounding: bool = False) -> Judged:
        stage = seen.stage
        count = 1 if seen.deterministic or not seen.noise_counts else NOISE_RUNS
        runs = [stage.eager(trial) for _ in range(count)]
        replay = stage.replay(trial)
        judged = judge(stage, trial, runs, replay, noise_counts=seen.noise_counts)
        if judged.parted and seen.noise_counts and len(runs) < NOISE_RUNS:
            # Eager may repeat itself on the captured inputs, and not on these.
            runs += [stage.eager(trial) for _ in range(NOISE_RUNS - len(runs))]
            judged = judge(stage, trial, runs, replay)
            if _noisy(judged):
                self._is_noise(seen, trial)
                judged = judge(stage, trial, runs, replay, noise_counts=seen.noise_counts)
        judged = self._with_more_runs(seen, judged)
        if judged.parted and rounding and self._rounds(seen):
            others = [stage.eager(one) for one in perturbed(self.target, stage, trial)]
            judged = judge(stage, trial, runs, replay, rounding=others)
        return judged.accepting(seen.random)

    def _with_more_runs(self, seen: VerifyState, judged: Judged) -> Judged:
        """Judged by more runs of eager, where it is noisy and the replay is far from a few."""
        if not judged.parted or not seen.noise_counts or not _noisy(judged):
            return judged
        more = [seen.stage.eager(judged.trial) for _ in range(MANY_RUNS - len(judged.eager))]
        return judge(seen.stage, judged.trial, [*judged.eager, *more], judged.replay)

    def _trials(self, seen: VerifyState) -> list[Trial]:
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
            self.told.looked.append(
                f"{len(found)} sets of fresh inputs for {len(found[0].writes)} tensors"
            )
        changed = [
            (tensor, _changed(value))
            for _, tensor in float_parameters(target.workload)
            if (value := stage.start.value_of(tensor)) is not None
        ]
        if changed:
            found.append(Trial("changed parameters", writes=changed))
            self.told.looked.append(f"{len(changed)} parameters changed in place")
        return found

    def _read_only(self, seen: VerifyState) -> list[tuple[str, torch.Tensor]]:
        """What a step reads by name and leaves alone: its inputs."""
        run = seen.stage.eager(Trial("one"))
        written = {name for _, name in run.values[0]}
        names = {id(tensor): name for name, tensor in state.read(self.target.workload).items()}
        return [
            (name, tensor)
            for name, tensor in closed_over(self.target.workload)
            if names.get(id(tensor)) not in written
        ]

    # Several graphs in one pool.

    def _look_at_order(self, seen: VerifyState) -> None:
        target = self.target
        if target.simulated or len(target.workload.parts) < 2 or target.options.pool != "shared":
            return
        trial = Trial("another order", order=_one_by_one)
        backward = any(one.phase == "backward" for one in target.session.captured)
        if not backward and randomness.is_random(target, seen.stage, seen.captured):
            # In another order each forward draws what was another's in eager.
            return
        judged = self._judge(seen, trial, rounding=True)
        if judged.parted:
            self.told.add(
                Finding(
                    SHARED_POOL_REPLAY_ORDER,
                    f"replayed one callable after the other, {judged.parted[0][1].name} is wrong: "
                    "the graphs share a pool and must be replayed as they were captured, every "
                    "forward in order, then every backward in reverse",
                    severity=NOTE,
                    phase="replay",
                )
            )


def _noisy(judged: Judged) -> bool:
    return any(one.noise != 0.0 for one in judged.comparisons)


def _changed(values: torch.Tensor) -> torch.Tensor:
    """By 1/64, which every floating-point type can hold apart."""
    with raw():
        wide = values if values.element_size() > 2 else values.float()
        return (wide * _CHANGED).to(values.dtype)


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
    finding = Finding(EMPTY_GRAPH, what, frames, phase="capture", fix=fix, evidence=(why,))
    return user_code(what, frames=frames, why=why, fix=fix, phase="capture", findings=(finding,))


def _one_by_one(graphs: Sequence[Any]) -> Sequence[Any]:
    """Each callable's forward and backward before the next; without backward, the last first."""
    if not any(one.phase == "backward" for one in graphs):
        return list(reversed(graphs))
    return sorted(graphs, key=lambda one: (one.callable, one.phase == "backward"))
