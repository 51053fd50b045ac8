"""``cgtool verify``: the trials, in order. The same on a GPU and on the simulated device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cgtool.detectors import compare_iterations
from cgtool.devices.device import VerifyTarget
from cgtool.findings import code
from cgtool.jobs.verify import causes, randomness, state
from cgtool.jobs.verify.compare import TrialResult, compare_runs
from cgtool.jobs.verify.explaining import Verification
from cgtool.jobs.verify.inputs import fresh, reordered
from cgtool.jobs.verify.liveness import Liveness
from cgtool.jobs.verify.reference import NO_MEMORY
from cgtool.jobs.verify.runs import (
    DeviceLostError,
    ReplayFailedError,
    Run,
    Trial,
    TrialRunner,
    autocast_caches,
    eager_iteration,
)
from cgtool.jobs.verify.state import Snapshot, copies, raw
from cgtool.jobs.verify.uninitialised import reads_uninitialised
from cgtool.model.capture import Caveat
from cgtool.model.failure import CgtoolError
from cgtool.model.finding import ERROR, NOTE, NOTHING_COMPARED, TOO_NOISY, Comparison, Finding
from cgtool.model.options import Progress, VerifyOptions
from cgtool.observe.tensors import HOST, place_of
from cgtool.program.boundary import first_line
from cgtool.program.workload import named_tensors

INPUT_FREED_BEFORE_REPLAY = code("input-freed-before-replay")
RNG_SEQUENCE_DIFFERS_FROM_EAGER = code("rng-sequence-differs-from-eager")
SHARED_POOL_REPLAY_ORDER = code("shared-pool-replay-order")
WARMUP_MUTATES_STATE = code("warmup-mutates-state")

NOISE_RUNS = 4
"""Eager runs that measure how much eager runs differ, if two are not enough."""
_SHOWN = 4
_FRESH_SEED = 20
_CHANGED = 1 - 1 / 64
"""Towards zero, so that probabilities stay below one."""
REFUSED_VALUES = "refused-values"


@dataclass
class Outcome:
    """The result of a verification."""

    findings: tuple[Finding, ...]
    comparisons: tuple[Comparison, ...]
    notes: tuple[Caveat, ...]
    looked_at: tuple[str, ...]


def verify(target: VerifyTarget, options: VerifyOptions, progress: Progress) -> Outcome:
    """Capture, and compare replays with eager.

    Raises CgtoolError when the code cannot be run or captured.
    """
    procedure = _Procedure(target, options, progress)
    procedure.prepare()
    try:
        procedure.run_trials()
        procedure.explain()
    except ReplayFailedError as error:
        procedure.report_failed_replay(error)
    except DeviceLostError as error:
        procedure.note(
            REFUSED_VALUES,
            f"{error}; the device cannot be used after that, so the other trials were skipped",
        )
    if not any(result.compared for result in procedure.results) and procedure.results:
        procedure.note(
            NOTHING_COMPARED,
            "nothing was compared: the entry returns no tensor, has no gradient, and changes no "
            "state that cgtool can reach; return what it computes",
        )
    for result in procedure.results:
        noisy = [each.comparison for each in result.compared if each.too_noisy]
        for comparison in noisy[:1]:
            # Without a number: some runs have infinities or NaNs that others do not have.
            amount = "" if comparison.noise is None else f" by {comparison.noise:.3g}"
            procedure.note(
                TOO_NOISY,
                f"{result.trial.name}: {comparison.name} differs{amount} between eager runs: the "
                "comparison proves little",
            )
    return Outcome(
        procedure.findings.all(),
        tuple(comparison for result in procedure.results for comparison in result.comparisons),
        tuple(procedure.notes),
        tuple(procedure.looked_at),
    )


class _Procedure(Verification):
    def run_trials(self) -> None:
        self.results.append(self._captured_inputs())
        if self.liveness.uses_empty:
            self.progress("fill empty memory")
            self.spoiled = reads_uninitialised(self.runner, self.captured)
        for alternatives in self._trials():
            result = self._first_accepted(alternatives)
            if result is not None:
                self.results.append(result)
        self._try_another_order()

    def _first_accepted(self, alternatives: Sequence[Trial]) -> TrialResult | None:
        """The first of these trials whose values eager accepts: it raises nothing, and its results
        are finite if those of the captured values are."""
        was_finite = self.results[0].eager[0].first_not_finite() is None
        for trial in alternatives:
            self.progress(trial.name)
            try:
                run = self.runner.eager(trial)
            except (CgtoolError, RuntimeError) as error:
                refusal = f"{trial.name}: eager fails with {trial.means} ({first_line(error)})"
                try:
                    self.target.device.synchronize()
                except RuntimeError:
                    raise DeviceLostError(refusal) from error
                self.note(REFUSED_VALUES, refusal)
                continue
            if trial is alternatives[-1] or not was_finite or run.first_not_finite() is None:
                self.looked_at.append(trial.means)
                return self._run_trial(trial, run)
        return None

    def report_failed_replay(self, error: ReplayFailedError) -> None:
        findings = list(self.liveness.findings())
        self.add(*findings)
        self.note("replay-failed", str(error))
        if not findings:
            self.add(
                Finding(
                    INPUT_FREED_BEFORE_REPLAY,
                    f"{error}; a graph that reads freed memory can fail like this",
                    phase="replay",
                )
            )

    def prepare(self) -> None:
        """Everything before the trials: warm-up, an observed iteration, and the capture."""
        target = self.target
        cold = copies(state.read(target.workload))
        iterations = target.warm_up(self.progress)
        self.looked_at.append(f"{iterations} eager iterations as warm-up")
        self.progress("observe one iteration")
        self.liveness = Liveness(target)
        if autocast_caches():
            # A capture finds the cache as warm-up leaves it.
            eager_iteration(target, keep_casts=True)
        self._report_changed_state(cold)
        del cold
        start = Snapshot(target.workload, target.device)
        with causes.watch_capturing_queries() as self.queries:
            target.capture(self.progress)
        target.session.require_nodes()
        self.looked_at.append(
            ", ".join(graph.name for graph in target.session.captured) + " captured"
        )
        self.runner = TrialRunner(target, start)
        target.device.overwrite_free_memory()
        self.captured = Trial("captured inputs", self.options.replays)

    def _report_changed_state(self, cold: dict[str, torch.Tensor]) -> None:
        now = state.read(self.target.workload)
        changed = [
            name
            for name, before in cold.items()
            if name in now and not state.unchanged(before, now[name])
        ]
        if changed:
            self.note(
                WARMUP_MUTATES_STATE,
                f"warm-up changed {_listed(changed)}: both sides start from the changed values "
                "here; in your program, save them before warm-up and restore them before the "
                "capture",
            )

    def _captured_inputs(self) -> TrialResult:
        """Several replays back to back, with the inputs of the capture."""
        trial = self.captured
        self.progress("replays back to back, and eager from the same state")
        result = self._run_trial(trial)
        if result.differing and self._rounds():
            result = self._by_distribution(result)
        self.looked_at.append(
            f"{trial.iterations} replays back to back and as many eager iterations from the same "
            f"state, eager {len(result.eager)} times"
        )
        return result

    def _is_noise(self, trial: Trial) -> None:
        """Eager differs from itself: by chance, or because the host changes a number that it uses,
        which is not noise."""
        self.deterministic = False
        eager = causes.Eager(self.runner)
        found = causes.kept(eager.restarted(trial, trial), compare_iterations.FROZEN)
        # A warning is a number that may have changed: a random order of a sum is noise.
        self.frozen = [finding for finding in found if finding.severity in (None, ERROR)]
        self.noise_counts = not self.frozen

    def _rounds(self) -> bool:
        """The replay may run other kernels than eager, which round differently. The simulated
        device runs the same ones, unless the code asks whether it is being captured."""
        may_differ = self.target.has_kernels or bool(self.queries)
        return self.noise_counts and may_differ

    def _by_distribution(self, result: TrialResult) -> TrialResult:
        """Compare the distributions of random results that differ."""
        keys = {(each.comparison.kind, each.comparison.name) for each in result.differing}
        if any(kind == "state" for kind, _ in keys):
            return result
        if not randomness.alike(self.runner, self.captured, keys):
            return result
        self.note(
            RNG_SEQUENCE_DIFFERS_FROM_EAGER,
            f"{result.differing[0].comparison.name} is random: with the same seed, replay and "
            "eager draw different numbers, of the same mean and magnitude over "
            f"{randomness.SEEDS} seeds",
        )
        self.random = keys
        return result.accepting(keys)

    def _run_trial(self, trial: Trial, *runs_so_far: Run) -> TrialResult:
        runner = self.runner
        least = 2 if trial is self.captured else 1
        runs = [*runs_so_far, *(runner.eager(trial) for _ in range(least - len(runs_so_far)))]
        replay = runner.replay(trial)

        def compare(rounds: bool = False, reference: Run | None = None) -> TrialResult:
            return compare_runs(
                trial,
                runs,
                replay,
                runner.base(trial),
                noise_counts=self.noise_counts,
                rounds=rounds,
                reference=reference,
            )

        result = compare()
        if self.noise_counts and (result.differing or result.noisy):
            # Two runs can agree by chance.
            runs += [runner.eager(trial) for _ in range(NOISE_RUNS - len(runs))]
            result = compare()
            if result.noisy:
                self._is_noise(trial)
                result = compare()
        if result.differing and self.noise_counts and (self._rounds() or not self.deterministic):
            result = compare(rounds=True, reference=self._reference(trial))
        return result.accepting(self.random)

    def _reference(self, trial: Trial) -> Run | None:
        """A float64 run, and notes on what it lacks."""
        self.progress(f"{trial.name}: eager in float64")
        failure: str | None
        try:
            run, recorder = self.runner.reference(trial)
        except (CgtoolError, torch.OutOfMemoryError) as error:
            failure = first_line(error) if isinstance(error, CgtoolError) else NO_MEMORY
        else:
            failure = recorder.failure
            if recorder.own_type and failure is None:
                self.note("not-in-float64", _own_type_text(recorder.own_type))
            if failure is None:
                return run
        self.note(
            "no-float64",
            f"replay and eager cannot be compared with float64 ({failure}): differences up to 1e-4 "
            "of the largest values count as equal, up to 1e-2 for 16-bit types",
        )
        return None

    def _trials(self) -> list[list[Trial]]:
        """Further trials, each followed by what takes its place if eager does not accept it."""
        runner, target = self.runner, self.target
        trials = []
        parameters = {
            id(tensor): tensor
            for _, kind, tensor in named_tensors(target.workload)
            if kind == "parameter" and tensor.is_floating_point()
        }
        changed = [
            (tensor, _changed(value))
            for tensor in parameters.values()
            if (value := runner.start.value_of(tensor)) is not None
        ]
        if changed:
            means = f"{len(changed)} parameters changed in place"
            trials.append([Trial("changed parameters", means=means, writes=[changed])])
        inputs = [
            (tensor, start)
            for _, tensor in (*runner.inputs, *self._read_only())
            if (start := runner.value_at_start(tensor, self.captured)) is not None
        ]
        generator = torch.Generator()
        generator.manual_seed(_FRESH_SEED)
        starts, count = [start for _, start in inputs], self.options.trials
        # In a row: code may read what an earlier iteration computed from other inputs.
        makers: dict[str, Callable[[], list[torch.Tensor | None]]] = {
            "new inputs": lambda: [fresh(start, generator) for start in starts],
            "the same samples in another order": lambda: reordered(starts, generator),
        }
        alternatives = []
        for means, make in makers.items():
            sets = [
                [
                    (tensor, values)
                    for (tensor, _), values in zip(inputs, make(), strict=True)
                    if values is not None
                ]
                for _ in range(count)
            ]
            if any(sets):
                what = f"{count} sets of {means} back to back for {len(sets[0])} tensors"
                alternatives.append(Trial("fresh inputs", count, sets, what))
        return [*trials, alternatives] if alternatives else trials

    def _read_only(self) -> list[tuple[str, torch.Tensor]]:
        """Tensors that a step reads by name and does not write: its inputs. A graph has the values
        of those in unpinned memory of the host, whose changes it cannot see."""
        if self.target.workload.kind != "step":
            return []
        run = self.runner.eager(Trial("one"))
        written = {name for _, name in run.values[0]}
        names = {id(tensor): name for name, tensor in state.read(self.target.workload).items()}
        return [
            (name.replace("tensor ", "", 1), tensor)
            for name, kind, tensor in named_tensors(self.target.workload)
            if kind == "input"
            and "tensor " in name
            and names.get(id(tensor)) not in written
            and place_of(tensor) != HOST
        ]

    def _try_another_order(self) -> None:
        target = self.target
        shared = target.options.pool == "shared" and len(target.workload.parts) > 1
        if not target.has_kernels or not shared:
            return
        trial = Trial("another order", order=_one_by_one)
        backward = any(graph.phase == "backward" for graph in target.session.captured)
        if not backward and randomness.is_random(self.runner, self.captured):
            # In another order a forward draws the numbers that another one draws in eager.
            return
        result = self._run_trial(trial)
        if result.differing:
            self.add(
                Finding(
                    SHARED_POOL_REPLAY_ORDER,
                    f"{result.differing[0].comparison.name} is wrong when one callable is replayed "
                    "after the other: the graphs share a pool and must be replayed in the order "
                    "of capture, every forward in order, then every backward in reverse",
                    severity=NOTE,
                    phase="replay",
                )
            )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if names[_SHOWN:] else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


def _own_type_text(own_type: dict[str, str]) -> str:
    """Of the ops of a float64 run that did not run in it, by name, and why."""
    return (
        f"in the float64 run {_listed(list(own_type))} kept their own types: they draw random "
        "numbers, are not PyTorch's, or have no float64 kernel"
    )


def _changed(values: torch.Tensor) -> torch.Tensor:
    """Changed by 1/64, which every floating-point type can represent."""
    with raw():
        wide = values if values.element_size() > 2 else values.float()
        return (wide * _CHANGED).to(values.dtype)


def _one_by_one(graphs: Sequence[Any]) -> Sequence[Any]:
    """Each callable's forward and backward before the next; without backward, the last first."""
    if not any(graph.phase == "backward" for graph in graphs):
        return list(reversed(graphs))
    return sorted(graphs, key=lambda graph: (graph.callable, graph.phase == "backward"))
