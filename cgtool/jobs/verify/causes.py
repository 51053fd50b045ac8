"""Why a replay is not what eager is: the findings that explain it, each at its line."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import torch

from cgtool.detectors.compare_iterations import (
    CPU_WORK_IN_REGION,
    FROZEN,
    IN_PLACE_ON_STATIC_INPUT,
    METADATA_ADDRESS_CHANGED,
    PARAMETER_REBOUND,
    PYTHON_SCALAR_FROZEN,
    RNG_FROZEN_SEED,
    compare_iterations,
)
from cgtool.detectors.compare_iterations import branches_on_capturing as branching_finding
from cgtool.detectors.optimizers import SteppingOptimizers, findings_of
from cgtool.detectors.reporting import at_call
from cgtool.findings.registry import code
from cgtool.jobs.verify.runs import (
    Trial,
    TrialRunner,
    VerifyTarget,
    autocast_caches,
    eager_iteration,
)
from cgtool.jobs.verify.state import host_random_state
from cgtool.jobs.verify.watching import LivenessRecorder, Outside, recording
from cgtool.model.capture import Frame
from cgtool.model.finding import ERROR, WARNING, Finding
from cgtool.observe import iteration
from cgtool.observe.frames import chain_of, frames_of, is_internal
from cgtool.observe.host_reads import HostReads
from cgtool.observe.ops import Record
from cgtool.observe.placement import on_host
from cgtool.program.phases import roots_of

AUTOCAST_WEIGHT_CACHE = code("autocast-weight-cache")
INPUT_FREED_BEFORE_REPLAY = code("input-freed-before-replay")

_REBOUND = (METADATA_ADDRESS_CHANGED, PARAMETER_REBOUND)


class Eager:
    """Eager iterations of the workload, compared by their ops."""

    def __init__(self, target: VerifyTarget, stage: TrialRunner) -> None:
        self.target = target
        self.stage = stage

    def _compare(self, run: Callable[[], Any]) -> list[Finding]:
        with recording(self.target) as annotations, iteration.without_collector():
            found, _ = compare_iterations(
                run,
                roots_of(self.target.workload),
                annotations,
                [(part.args, dict(part.kwargs)) for part in self.target.workload.parts],
            )
        return found

    def _iterate(self) -> None:
        eager_iteration(self.target)
        self.target.device.synchronize()

    def in_a_row(self, trial: Trial, skipped: int = 0) -> list[Finding]:
        """Of two iterations, one after the other, after so many that are not looked at."""
        self.stage.begin_eager(trial)
        for _ in range(skipped):
            self._iterate()
        return self._compare(self._iterate)

    def restarted(self, first: Trial, second: Trial) -> list[Finding]:
        """Of two iterations that both begin at the start, each with its own inputs."""
        trials = iter((first, second))

        def run() -> None:
            self.stage.begin_eager(next(trials))
            self._iterate()

        return self._compare(run)

    def frozen(self, trial: Trial, iteration: int, captured: Trial) -> list[Finding]:
        """What the host changes between iterations, or between two sets of inputs."""
        for skipped in range(max(1, iteration)):
            found = kept(self.in_a_row(trial, skipped), FROZEN)
            found += self._optimizers(trial, skipped)
            if found:
                return self._of_chance(found, trial)
        return kept(self.restarted(captured, trial), FROZEN)

    def _optimizers(self, trial: Trial, skipped: int) -> list[Finding]:
        """Optimizers whose numbers the host moves from one iteration to the next."""
        self.stage.begin_eager(trial)
        for _ in range(skipped):
            self._iterate()
        with SteppingOptimizers() as steps:
            self._iterate()
            before = {key: _numbers_of(one) for key, (one, _) in steps.steps.items()}
            self._iterate()
        found: list[Finding] = []
        for key, (optimizer, stepped) in steps.steps.items():
            moved = [
                f"{name}: {old}, then {new}"
                for (name, old), (_, new) in zip(
                    before.get(key, []), _numbers_of(optimizer), strict=False
                )
                if old != new
            ]
            if moved:
                found += [
                    msgspec.structs.replace(
                        one, evidence=(*one.evidence, *moved[:3]), severity=ERROR
                    )
                    for one in findings_of(optimizer, stepped)
                ]
        return found

    def _of_chance(self, found: list[Finding], trial: Trial) -> list[Finding]:
        """A frozen number that comes of a random generator of the host, which moved."""
        self.stage.begin_eager(trial)
        before = host_random_state(self.stage.start)
        self._iterate()
        if before == host_random_state(self.stage.start):
            return found
        return [
            msgspec.structs.replace(
                one,
                code=RNG_FROZEN_SEED,
                reason="a random number that the host draws is another in the next call: every "
                "replay repeats that of the capture",
            )
            if one.code == PYTHON_SCALAR_FROZEN
            else one
            for one in found
        ]


def _numbers_of(optimizer: torch.optim.Optimizer) -> list[tuple[str, Any]]:
    """Options and state of an optimizer that lie on the host."""
    found: list[tuple[str, Any]] = []
    for group in optimizer.param_groups:
        found += [(key, one) for key, one in group.items() if isinstance(one, int | float)]
    for number, state in enumerate(optimizer.state.values()):
        for key, one in state.items():
            host = isinstance(one, torch.Tensor) and on_host(one) and one.dim() == 0
            if host or isinstance(one, int | float):
                found.append((f"{key} of parameter {number}", float(one)))
    return found


def kept(findings: list[Finding], codes: frozenset[str]) -> list[Finding]:
    """Those with one of the codes; a line of host work is told once."""
    host = {one.frames[:1] for one in findings if one.code == CPU_WORK_IN_REGION}
    return [
        one
        for one in findings
        if one.code in codes and not (one.code == PYTHON_SCALAR_FROZEN and one.frames[:1] in host)
    ]


def branches_on_capturing(
    target: VerifyTarget, stage: TrialRunner, heard: Asked, trial: Trial
) -> Iterator[Finding]:
    """The code asked during the capture, and does otherwise when it is told yes."""
    if not heard.chains:
        return

    def ops(answer: bool) -> list[iteration.Op]:
        stage.begin_eager(trial)
        with recording(target) as annotations, asked(answer):
            seen = iteration.observe(
                lambda: eager_iteration(target),
                roots_of(target.workload),
                annotations,
                HostReads(),
                set(),
            )
        return seen.ops

    no, yes = ops(False), ops(True)
    if [(op.call.name, op.numbers) for op in no] == [(op.call.name, op.numbers) for op in yes]:
        return
    yield branching_finding(heard.chains[0], [op.call for op in no], [op.call for op in yes])


class Liveness:
    """One warm iteration, before anything here holds a tensor of the user's."""

    def __init__(self, target: VerifyTarget) -> None:
        self._caches = autocast_caches()
        with recording(target) as annotations:
            recorder = LivenessRecorder(target, annotations)
            # Casts that warm-up left in autocast's cache are what a capture would read.
            self._incoming: list[torch.Tensor] = []
            eager_iteration(target, recorder, keep_casts=True, hold=self._incoming)
        target.device.synchronize()
        if self._caches:
            torch.clear_autocast_cache()
        self.record: Record = recorder.record
        self.dead: list[Outside] = recorder.dead()
        self.uses_empty = recorder.uses_empty

    def joined(self, known: list[Finding], found: list[Finding]) -> Iterator[Finding]:
        """``found``, and the memory that was freed. Where something of ``known`` says at the same
        line that a tensor was replaced, that is the same story, and is told once."""
        rebound = {one.frames[:1]: one for one in known if one.code in _REBOUND}
        dead = list(self.findings())
        freed = {one.frames[:1] for one in dead}
        told = set()
        for one in (*found, *rebound.values()):
            place = one.frames[:1]
            if one.code in _REBOUND and place in freed:
                if place in told:
                    continue
                told.add(place)
                yield msgspec.structs.replace(
                    one,
                    evidence=(*one.evidence, "the first is freed when the call is over"),
                )
            elif one in found:
                yield one
        yield from (one for one in dead if one.frames[:1] not in rebound)

    def findings(self) -> Iterator[Finding]:
        """Outside memory that the iteration read and that was freed when it was over."""
        for one in self.dead:
            what = f"{one.dtype}{list(one.shape)}"
            if self._caches:
                finding = Finding(
                    AUTOCAST_WEIGHT_CACHE,
                    f"{one.call.name} reads a cast that autocast had in its cache: a replay "
                    "goes on reading it when the weight has changed and the cache is gone",
                    evidence=(f"the cast is {what}",),
                )
            else:
                finding = Finding(
                    INPUT_FREED_BEFORE_REPLAY,
                    f"{one.call.name} reads {what} from before the call, which nothing holds when "
                    "the call is over: a replay reads freed memory",
                )
            yield at_call(finding, one.call, self.record)


def written_inputs(names: list[str], found: list[Finding]) -> Iterator[Finding]:
    """Static inputs that the callable writes."""
    at_line = [one for one in found if one.code == IN_PLACE_ON_STATIC_INPUT]
    for one in at_line[:1] if len(names) == 1 else at_line:
        yield msgspec.structs.replace(
            one,
            severity=WARNING,
            evidence=(*one.evidence, f"changed by a replay: {', '.join(names)}"),
        )
    if not at_line:
        yield Finding(
            IN_PLACE_ON_STATIC_INPUT,
            f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not what it was after a "
            "replay: the next one starts from there, unless it is refilled",
            severity=WARNING,
            phase="replay",
        )


_OWNERS: tuple[Any, ...] = (torch.cuda, torch.cuda.graphs)


class Asked:
    """The call chains of the code that asked, innermost first."""

    def __init__(self) -> None:
        self.chains: list[tuple[Frame, ...]] = []


@contextlib.contextmanager
def asked(answer: bool | None = None) -> Iterator[Asked]:
    """Note who asks; ``answer`` replaces what they are told."""
    heard = Asked()

    def wrap(ask: Callable[[], bool]) -> Callable[[], bool]:
        def is_current_stream_capturing() -> bool:
            caller = sys._getframe(1)
            # Optimizers of torch's own ask too, and refuse rather than branch.
            if not is_internal(caller.f_code):
                heard.chains.append(frames_of(chain_of(caller)))
                if answer is not None:
                    return answer
            return ask()

        return is_current_stream_capturing

    before = [owner.is_current_stream_capturing for owner in _OWNERS]
    for owner, ask in zip(_OWNERS, before, strict=True):
        owner.is_current_stream_capturing = wrap(ask)
    try:
        yield heard
    finally:
        for owner, ask in zip(_OWNERS, before, strict=True):
            owner.is_current_stream_capturing = ask
