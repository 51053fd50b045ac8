"""``cgtool verify``: the trials, in order. The same on a GPU and on the simulated device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from cgtool.analysis.units import count_text, names_text
from cgtool.devices.device import VerifyTarget
from cgtool.findings import code
from cgtool.jobs.verify import causes, randomness
from cgtool.jobs.verify.evidence import EagerFacts, Evidence, Run, Trial
from cgtool.jobs.verify.explanation import Log, Subject, explain, explain_failed_replay
from cgtool.jobs.verify.float64 import NO_MEMORY
from cgtool.jobs.verify.fresh_inputs import fresh, reordered
from cgtool.jobs.verify.judge import Verdict, judge
from cgtool.jobs.verify.liveness import Liveness
from cgtool.jobs.verify.runner import (
    DeviceLostError,
    ReplayFailedError,
    TrialRunner,
    autocast_caches,
    eager_iteration,
)
from cgtool.jobs.verify.state import Snapshot, state_of
from cgtool.model.capture import Caveat
from cgtool.model.failure import CgtoolError
from cgtool.model.finding import NOTE, NOTHING_COMPARED, TOO_NOISY, Comparison, Finding
from cgtool.model.options import Progress, VerifyOptions
from cgtool.observe.capturing_queries import watch_capturing_queries
from cgtool.observe.raw_tensors import copies, raw, unchanged
from cgtool.observe.tensors import HOST, place_of
from cgtool.program.boundary import first_line
from cgtool.program.description import named_tensors
from cgtool.program.workload import Named

RNG_SEQUENCE_DIFFERS_FROM_EAGER = code("rng-sequence-differs-from-eager")
SHARED_POOL_REPLAY_ORDER = code("shared-pool-replay-order")
WARMUP_MUTATES_STATE = code("warmup-mutates-state")

_EAGER_RUNS = 4
"""They measure how much eager runs differ, if two are not enough."""
_SHOWN = 4
_FRESH_SEED = 20
_ANOTHER_SEED = 1_000_003
"""Not the one of the capture: a graph may draw the same numbers whatever the seed."""
_CHANGED = 1 - 1 / 64
"""Towards zero, so that probabilities stay below one."""
REFUSED_VALUES = "refused-values"
UNUSED_INPUTS = "unused-inputs"
UNWRITTEN_RESULTS = "unwritten-results"


@dataclass(frozen=True)
class Outcome:
    findings: tuple[Finding, ...]
    comparisons: tuple[Comparison, ...]
    notes: tuple[Caveat, ...]
    looked_at: tuple[str, ...]


def verify(target: VerifyTarget, options: VerifyOptions, progress: Progress) -> Outcome:
    """Capture, and compare replays with eager.

    Raises CgtoolError when the code cannot be run or captured.
    """
    log = Log(progress, target.workload.frame)
    subject = _captured(target, options, log)
    verdicts: list[Verdict] = []
    try:
        for verdict in _verdicts(subject):
            verdicts.append(verdict)
        explain(subject, verdicts)
    except ReplayFailedError as error:
        explain_failed_replay(subject, error)
    except DeviceLostError as error:
        log.note(
            REFUSED_VALUES,
            f"{error}; the device cannot be used after that, so the other trials were skipped",
        )
    compared = [each for verdict in verdicts for each in verdict.compared]
    if verdicts and not compared:
        log.note(
            NOTHING_COMPARED,
            "nothing was compared: the entry returns no tensor, has no gradient, and changes no "
            "state that cgtool can reach; return what it computes",
        )
    for verdict in verdicts:
        noisy = [each.comparison for each in verdict.compared if each.too_noisy]
        for comparison in noisy[:1]:
            # Without a number: some runs have infinities or NaNs that others do not have.
            amount = "" if comparison.noise is None else f" by {comparison.noise:.3g}"
            reason = f"differs{amount} between eager runs"
            if log.not_restored:
                reason += (
                    ", which may begin in different states: cgtool cannot restore "
                    f"{names_text(log.not_restored, _SHOWN)}"
                )
            elif comparison.eager_error is not None:
                reason = f"is {comparison.eager_error:.3g} from its float64 value in eager too"
            log.note(
                TOO_NOISY,
                f"{verdict.evidence.trial.name}: {comparison.name} {reason}: the comparison proves "
                "little",
            )
    return Outcome(
        log.findings.all(),
        tuple(each.comparison for each in compared),
        tuple(log.notes),
        tuple(log.looked_at),
    )


def _captured(target: VerifyTarget, options: VerifyOptions, log: Log) -> Subject:
    """Warm up, observe one iteration, and capture."""
    cold = copies(state_of(target.workload))
    target.session.warm_up(log.progress)
    log.looked_at.append(f"{target.session.warmup_iters} eager iterations as warm-up")
    log.progress("observe one iteration")
    liveness = Liveness(target)
    if autocast_caches():
        # A capture finds the cache as warm-up leaves it.
        eager_iteration(target, keep_casts=True)
    warm = state_of(target.workload)
    changed = [
        name for name, before in cold.items() if name in warm and not unchanged(before, warm[name])
    ]
    del cold, warm
    if changed:
        log.note(
            WARMUP_MUTATES_STATE,
            f"warm-up changed {names_text(changed, _SHOWN)}: both sides start from the changed "
            "values here; in your program, save them before warm-up and restore them before the "
            "capture",
        )
    start = Snapshot(target.workload, target.device)
    with watch_capturing_queries() as queries:
        target.capture(log.progress)
    target.session.require_nodes()
    log.looked_at.append(", ".join(graph.name for graph in target.session.graphs) + " captured")
    runner = TrialRunner(target, start)
    target.device.overwrite_free_memory()
    trial = Trial("captured inputs", options.replays)
    return Subject(target, options, runner, liveness, tuple(queries), trial, log)


# --- the trials


def _verdicts(subject: Subject) -> Iterator[Verdict]:
    """The verdict of each trial. Raises ReplayFailedError and DeviceLostError."""
    first = verdict = _of_captured_inputs(subject)
    yield verdict
    for alternatives in _further_trials(subject, first):
        accepted = _first_accepted(subject, alternatives, first)
        if accepted is not None:
            trial, run = accepted
            verdict = _examine(subject, trial, verdict.evidence.facts, run)
            _note_unused_inputs(subject.log, trial, run)
            yield verdict
    _try_another_order(subject, verdict.evidence.facts)


def _of_captured_inputs(subject: Subject) -> Verdict:
    """Several replays back to back, with the inputs of the capture."""
    log, trial = subject.log, subject.trial
    log.progress("replays back to back, and eager from the same state")
    counts = frozenset(("state", name) for name in subject.liveness.counts)
    facts = EagerFacts(counts=counts)
    verdict = _without_unwritten(
        subject, _examine(subject, trial, facts, *(subject.runner.eager(trial) for _ in range(2)))
    )
    evidence = verdict.evidence
    random = frozenset((each.comparison.kind, each.comparison.name) for each in verdict.differing)
    if (
        random
        and subject.other_kernels
        and not evidence.facts.frozen
        and not any(kind == "state" for kind, _ in random)
        and (seeds := randomness.alike(subject.runner, trial, random))
    ):
        log.note(
            RNG_SEQUENCE_DIFFERS_FROM_EAGER,
            f"{verdict.differing[0].comparison.name} is random: with the same seed, replay and "
            "eager draw different numbers, of the same mean and magnitude over "
            f"{seeds} seeds",
        )
        verdict = judge(replace(evidence, facts=replace(evidence.facts, random=random)))
    log.looked_at.append(
        f"{trial.iterations} replays back to back and as many eager iterations from the same "
        f"state, eager {len(evidence.eager)} times"
    )
    return verdict


def _without_unwritten(subject: Subject, verdict: Verdict) -> Verdict:
    """The verdict without results that no replay writes although the capture is right: eager code
    does not write them either, or has them on the host, because an op of PyTorch puts them on the
    device only while it is captured."""
    evidence = verdict.evidence
    unwritten = frozenset(evidence.replay.unwritten)
    differing = {(each.comparison.kind, each.comparison.name) for each in verdict.differing}
    if differing.isdisjoint(unwritten):
        return verdict
    eager, replay = (run.iterations[0].after for run in (evidence.eager[0], evidence.replay))
    moved = frozenset(
        key for key in unwritten & eager.keys() if eager[key].device != replay[key].device
    )
    unset = unwritten & subject.runner.uninitialized(evidence.trial)
    for keys, why in (
        (unset - moved, "neither eager code nor a replay writes this memory"),
        (moved, "eager code has it on the host, and no replay writes it"),
    ):
        if keys:
            names = names_text(sorted(name for _, name in keys), _SHOWN)
            subject.log.note(UNWRITTEN_RESULTS, f"not compared: {names}; {why}")
    return judge(replace(evidence, facts=replace(evidence.facts, unwritten=unset | moved)))


def _examine(subject: Subject, trial: Trial, facts: EagerFacts, *runs: Run) -> Verdict:
    """Run a trial until its evidence is enough. ``runs``: its eager runs so far, one at least."""
    runner = subject.runner
    evidence = Evidence(trial, runs, runner.replay(trial), facts)
    verdict = judge(evidence)
    if not facts.frozen and (verdict.differing or verdict.noisy):
        # Two runs can agree by chance.
        more = [runner.eager(trial) for _ in range(_EAGER_RUNS - len(runs))]
        evidence = replace(evidence, eager=(*runs, *more))
        verdict = judge(evidence)
        if verdict.noisy:
            # By chance, or because the host changes a number that it uses, which is not noise.
            frozen = causes.not_restored(runner, trial)
            evidence = replace(evidence, facts=replace(facts, differs=True, frozen=frozen))
            verdict = judge(evidence)
    may_round = subject.other_kernels or evidence.facts.differs
    if verdict.differing and may_round and not evidence.facts.frozen:
        float64 = _float64(subject, trial)
        verdict = judge(replace(evidence, may_round=True, float64=float64))
    return verdict


def _float64(subject: Subject, trial: Trial) -> Run | None:
    """A float64 run, and notes on what it lacks."""
    log = subject.log
    log.progress(f"{trial.name}: eager in float64")
    failure: str | None
    try:
        run, recorder = subject.runner.float64(trial)
    except (CgtoolError, torch.OutOfMemoryError) as error:
        failure = first_line(error) if isinstance(error, CgtoolError) else NO_MEMORY
    else:
        failure = recorder.failure
        if failure is None:
            if recorder.own_type:
                names = names_text(list(recorder.own_type), _SHOWN)
                log.note(
                    "not-in-float64",
                    f"in the float64 run {names} kept their own types: "
                    "they draw random numbers, are not PyTorch's, or have no float64 kernel",
                )
            return run
    log.note(
        "no-float64",
        f"replay and eager cannot be compared with float64 ({failure}): differences up to 1e-4 "
        "of the largest values count as equal, up to 1e-2 for 16-bit types",
    )
    return None


def _first_accepted(
    subject: Subject, alternatives: Sequence[Trial], first: Verdict
) -> tuple[Trial, Run] | None:
    """The first of these trials whose values eager accepts, and its run: it raises nothing, and its
    results are finite if those of the captured values are."""
    log = subject.log
    was_finite = first.evidence.eager[0].first_not_finite() is None
    for trial in alternatives:
        log.progress(trial.name)
        try:
            run = subject.runner.eager(trial)
        except (CgtoolError, RuntimeError) as error:
            refusal = f"{trial.name}: eager fails with {trial.means} ({first_line(error)})"
            try:
                subject.target.device.synchronize()
            except RuntimeError:
                raise DeviceLostError(refusal) from error
            log.note(REFUSED_VALUES, refusal)
            continue
        if trial is alternatives[-1] or not was_finite or run.first_not_finite() is None:
            log.looked_at.append(trial.means)
            return trial, run
    return None


def _note_unused_inputs(log: Log, trial: Trial, eager: Run) -> None:
    """Of inputs whose new values leave each output as it was, bit for bit: they may be unused, or
    used by the first call only."""
    first, *others = (iteration.after for iteration in eager.iterations)
    outputs = {key: values for key, values in first.items() if key[0] == "output"}
    depends = any(
        key in other and not unchanged(values, other[key])
        for other in others
        for key, values in outputs.items()
    )
    if trial.changes and others and outputs and not depends:
        log.note(
            UNUSED_INPUTS,
            f"other values of {names_text(list(trial.changes), _SHOWN)} change no bit of the "
            "output; if they should, the code keeps what an earlier call has computed",
        )


def _further_trials(subject: Subject, first: Verdict) -> Iterator[list[Trial]]:
    """Each is followed by what takes its place if eager does not accept it."""
    values = subject.runner.begin_eager(subject.trial)
    parameters = {
        id(tensor): tensor
        for _, kind, tensor in named_tensors(subject.target.workload)
        if kind == "parameter" and tensor.is_floating_point() and id(tensor) in values
    }
    if parameters:
        changed = [(tensor, _changed(values[key])) for key, tensor in parameters.items()]
        means = f"{count_text(len(changed), 'parameter')} changed in place"
        yield [Trial("changed parameters", means=means, writes=[changed])]
    read = _read_only(subject, first)
    arguments = {id(tensor): name for name, tensor in (*subject.runner.arguments, *read)}
    inputs = [tensor for _, tensor in (*subject.runner.inputs, *read) if id(tensor) in values]
    starts, count = [values[id(tensor)] for tensor in inputs], subject.options.trials
    generator = torch.Generator()
    generator.manual_seed(_FRESH_SEED)
    # In a row: code may read what an earlier iteration computed from other inputs.
    makers: dict[str, Callable[[], list[torch.Tensor | None]]] = {
        "new inputs": lambda: [fresh(start, generator) for start in starts],
        "the same samples in another order": lambda: reordered(starts, generator),
    }
    alternatives = []
    for means, make in makers.items():
        sets = [
            [(tensor, new) for tensor, new in zip(inputs, make(), strict=True) if new is not None]
            for _ in range(count)
        ]
        if any(sets):
            tensors = count_text(len(sets[0]), "tensor")
            text = f"{count_text(count, 'set')} of {means} back to back for {tensors}"
            # The samples in another order may well have the same sum.
            written = [id(tensor) for tensor, _ in sets[0]] if means == "new inputs" else []
            changes = tuple(arguments[key] for key in written if key in arguments)
            alternatives.append(
                Trial("fresh inputs", count, sets, text, seed=_ANOTHER_SEED, changes=changes)
            )
    if alternatives:
        yield alternatives


def _read_only(subject: Subject, first: Verdict) -> list[Named]:
    """Tensors that a step reads by name and does not write: its inputs. A graph has the values
    of those in unpinned memory of the host, whose changes it cannot see."""
    workload = subject.target.workload
    if workload.kind != "step":
        return []
    written = {name for _, name in first.evidence.eager[0].iterations[0].changed()}
    names = {id(tensor): name for name, tensor in state_of(workload).items()}
    return [
        (name, tensor)
        for name, kind, tensor in named_tensors(workload)
        if kind == "input"
        and "tensor " in name
        and names.get(id(tensor)) not in written
        and place_of(tensor) != HOST
    ]


def _changed(values: torch.Tensor) -> torch.Tensor:
    """Changed by 1/64, which every floating-point type can represent."""
    with raw():
        wide = values if values.element_size() > 2 else values.float()
        return (wide * _CHANGED).to(values.dtype)


def _try_another_order(subject: Subject, facts: EagerFacts) -> None:
    """Replay graphs that share a pool in an order in which they were not captured."""
    target, runner = subject.target, subject.runner
    shared = target.options.pool == "shared" and len(target.workload.parts) > 1
    if not target.has_kernels or not shared:
        return
    backward = any(graph.phase == "backward" for graph in target.session.graphs)
    if not backward and randomness.is_random(runner, subject.trial):
        # In another order a forward draws the numbers that another one draws in eager.
        return
    trial = Trial("another order", order=_one_by_one)
    verdict = _examine(subject, trial, facts, runner.eager(trial))
    for each in verdict.differing[:1]:
        subject.log.add(
            Finding(
                SHARED_POOL_REPLAY_ORDER,
                f"{each.comparison.name} is wrong when one callable is replayed "
                "after the other: the graphs share a pool and must be replayed in the order "
                "of capture, every forward in order, then every backward in reverse",
                severity=NOTE,
                phase="replay",
            )
        )


def _one_by_one(graphs: Sequence[Any]) -> Sequence[Any]:
    """Each callable's forward and backward before the next; without backward, the last first."""
    if not any(graph.phase == "backward" for graph in graphs):
        return list(reversed(graphs))
    return sorted(graphs, key=lambda graph: (graph.callable, graph.phase == "backward"))
