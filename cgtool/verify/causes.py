"""Why a replay is not what eager is: the findings that explain it, each at its line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import torch

from cgtool.entry.phases import roots_of
from cgtool.hazards import repeat
from cgtool.hazards.collect import at_call
from cgtool.hazards.hostreads import HostReads
from cgtool.model.finding import WARNING, Finding
from cgtool.record.ops import Record
from cgtool.verify import replayable
from cgtool.verify.capturing_asked import Asked, asked
from cgtool.verify.replayable import Replayable
from cgtool.verify.runs import Stage, Trial
from cgtool.verify.watching import LivenessRecorder, Outside, recording

FROZEN = frozenset(
    (
        "python-scalar-frozen", "control-flow-frozen", "cpu-state-step-counter", "rng-frozen-seed",
        "cpu-work-in-region", "metadata-address-changed", "parameter-rebound",
        "cpu-scalar-tensor-operand",
    )
)  # fmt: skip
"""What ``repeat.compare`` finds that makes numbers part."""
_REBOUND = ("metadata-address-changed", "parameter-rebound")


class Eager:
    """Eager iterations of the workload, compared by their ops."""

    def __init__(self, target: Replayable, stage: Stage) -> None:
        self.target = target
        self.stage = stage

    def _compare(self, run: Callable[[], Any]) -> list[Finding]:
        with recording(self.target) as annotations:
            found, _ = repeat.compare(
                run,
                roots_of(self.target.workload),
                annotations,
                [(part.args, dict(part.kwargs)) for part in self.target.workload.parts],
            )
        return found

    def _iterate(self) -> None:
        replayable.eager(self.target)
        self.target.synchronize()

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
            if found:
                return found
        return kept(self.restarted(captured, trial), FROZEN)


def kept(findings: list[Finding], codes: frozenset[str]) -> list[Finding]:
    """Those with one of the codes; a line of host work is told once."""
    host = {one.frames[:1] for one in findings if one.code == "cpu-work-in-region"}
    return [
        one
        for one in findings
        if one.code in codes and not (one.code == "python-scalar-frozen" and one.frames[:1] in host)
    ]


def branches_on_capturing(
    target: Replayable, stage: Stage, heard: Asked, trial: Trial
) -> Iterator[Finding]:
    """The code asked during the capture, and does otherwise when it is told yes."""
    if not heard.chains:
        return

    def ops(answer: bool) -> list[tuple[str, Any]]:
        stage.begin_eager(trial)
        with recording(target) as annotations, asked(answer):
            seen = repeat.observe(
                lambda: replayable.eager(target),
                roots_of(target.workload),
                annotations,
                HostReads(),
                set(),
            )
        return [(op.call.name, op.numbers) for op in seen.ops]

    no, yes = ops(False), ops(True)
    if no == yes:
        return
    yield Finding(
        "code-branches-on-capturing",
        "the code asks here whether it is being captured, and runs other work when it is",
        heard.chains[0],
        phase="capture",
        evidence=(f"{len(no)} ops when told no, {len(yes)} when told yes",),
    )


class Liveness:
    """One warm iteration, before anything here holds a tensor of the user's."""

    def __init__(self, target: Replayable) -> None:
        self._caches = replayable.autocast_caches()
        with recording(target) as annotations:
            recorder = LivenessRecorder(target, annotations)
            # Casts that warm-up left in autocast's cache are what a capture would read.
            self._incoming: list[torch.Tensor] = []
            replayable.eager(target, recorder, keep_casts=True, hold=self._incoming)
        target.synchronize()
        if self._caches:
            torch.clear_autocast_cache()
        self.record: Record = recorder.record
        self.dead: list[Outside] = recorder.dead()
        self.uses_empty = recorder.uses_empty

    def findings(self, rebound: list[Finding]) -> Iterator[Finding]:
        """Outside memory that the iteration read and that was freed when it was over.

        ``rebound``: findings that say the same of a name.
        """
        told = {one.frames[:1] for one in rebound if one.code in _REBOUND}
        for one in self.dead:
            what = f"{one.dtype}{list(one.shape)}"
            if self._caches:
                finding = Finding(
                    "autocast-weight-cache",
                    f"{one.call.name} reads a cast that autocast had in its cache: a replay "
                    "goes on reading it when the weight has changed and the cache is gone",
                    evidence=(f"the cast is {what}",),
                )
            else:
                finding = Finding(
                    "input-freed-before-replay",
                    f"{one.call.name} reads {what} from before the call, which nothing holds when "
                    "the call is over: a replay reads freed memory",
                )
            placed = at_call(finding, one.call, self.record)
            if placed.frames[:1] not in told:
                yield placed


def written_inputs(names: list[str], found: list[Finding]) -> Iterator[Finding]:
    """Static inputs that the callable writes."""
    at_line = [one for one in found if one.code == "in-place-on-static-input"]
    for one in at_line[:1] if len(names) == 1 else at_line:
        yield msgspec.structs.replace(
            one,
            severity=WARNING,
            evidence=(*one.evidence, f"changed by a replay: {', '.join(names)}"),
        )
    if not at_line:
        yield Finding(
            "in-place-on-static-input",
            f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not what it was after a "
            "replay: the next one starts from there, unless it is refilled",
            severity=WARNING,
            phase="replay",
        )
