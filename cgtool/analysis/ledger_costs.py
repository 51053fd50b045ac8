"""Where the time of a program's captures went, and whether its replays pay for them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cgtool.analysis.units import count_text, percent_text, time_text, total_of
from cgtool.findings import code
from cgtool.model.capture import Frame
from cgtool.model.finding import Code, Finding
from cgtool.model.ledger import COMPILE, LedgerGraph

CAPTURE_DOES_NOT_PAY = code("capture-does-not-pay")
CAPTURE_INCLUDES_AUTOTUNE = code("capture-includes-autotune")
COLLECTOR_IN_CAPTURE = code("collector-in-capture")

_SHARE = 0.2
_LEAST_NS = 1_000_000
"""Less than this in the captures of a line is not reported."""
_LOSS_NS = 10_000_000
"""Nor is a smaller loss in all captures of a line."""


@dataclass(frozen=True)
class CaptureTime:
    """The host time of captures, by what it was spent on; None where it is not known."""

    warm_up_ns: int | None
    """Iterations before the capture, if PyTorch runs them."""
    prepare_ns: int | None
    """In ``torch.cuda.graph`` before the capture: waiting for the device, emptying caches."""
    code_ns: int
    """The captured code."""
    compile_ns: int
    """Triton and Inductor in the capture: compiling, tuning and loading kernels."""
    collector_ns: int
    """Python's garbage collector in the capture."""
    instantiate_ns: int
    cgtool_ns: int
    """Time that cgtool took to read the graphs, which is not part of the others."""


def capture_time(entries: Sequence[LedgerGraph]) -> CaptureTime:
    """Where the time of the captures of some graphs went."""
    compile_ns = sum(each.compile_ns for each in entries)
    collector_ns = sum(each.collector_ns for each in entries)
    instantiate_ns = sum(each.instantiate_ns or 0 for each in entries)
    capture_ns = sum(each.capture_ns for each in entries)
    return CaptureTime(
        total_of(each.warm_up_ns for each in entries),
        total_of(each.prepare_ns for each in entries),
        max(capture_ns - compile_ns - collector_ns - instantiate_ns, 0),
        compile_ns,
        collector_ns,
        instantiate_ns,
        sum(each.cgtool_ns for each in entries),
    )


def numbers_of(entries: Sequence[LedgerGraph]) -> tuple[int, ...]:
    """The numbers of the graphs that can be shown, for ``Finding.graphs``."""
    return tuple(sorted(each.graph for each in entries if each.graph is not None))


def cost_findings(entries: Sequence[LedgerGraph], frames: tuple[Frame, ...]) -> Iterator[Finding]:
    """Findings on work that takes too much of a line's captures, and on captures that do not
    pay."""
    whole_ones = [each for each in entries if each.failure is None]
    spent = capture_time(whole_ones)
    parts: Sequence[tuple[Code, int, str]] = (
        (COLLECTOR_IN_CAPTURE, spent.collector_ns, "Python's garbage collector takes"),
        (
            CAPTURE_INCLUDES_AUTOTUNE,
            spent.compile_ns,
            "compiling, tuning and loading kernels in Triton and Inductor takes",
        ),
    )
    whole = sum(each.capture_ns for each in whole_ones)
    for name, part, who in parts:
        if whole and part >= max(_LEAST_NS, _SHARE * whole):
            yield Finding(
                name,
                f"{who} {percent_text(part / whole)} of the capture time here",
                frames,
                evidence=(
                    f"{time_text(part)} of {time_text(whole)}, in "
                    f"{count_text(len(whole_ones), 'capture')}",
                ),
                graphs=numbers_of(whole_ones),
            )
    yield from _unpaid(entries, frames)


@dataclass(frozen=True)
class _Balance:
    """The cost of a graph, and the most that its replays can have saved."""

    entry: LedgerGraph
    cost_ns: int
    code_ns: int
    """Host time of the captured code, as of the capture."""
    gpu_ns: int
    """GPU time of a replay; 0 if it was not timed."""
    replay_ns: int
    """Host time of a replay."""

    @property
    def saving_ns(self) -> int:
        """The most that one replay saves: eager takes at most as long as the host takes to launch
        the code, or as the GPU takes to run it."""
        return max(self.code_ns, self.gpu_ns) - max(self.replay_ns, self.gpu_ns)

    @property
    def loss_ns(self) -> int:
        return self.cost_ns - max(self.saving_ns, 0) * self.entry.uses


def _balance(entry: LedgerGraph) -> _Balance:
    first, replays = entry.first_replay_host_ns or 0, entry.replays
    # Compiled code computes with the warm-up and the recording what it was called for.
    before = 0 if entry.owner == COMPILE else (entry.warm_up_ns or 0)
    spent = capture_time([entry])
    return _Balance(
        entry,
        entry.capture_ns + before + (entry.prepare_ns or 0),
        spent.code_ns,
        entry.replay_gpu_ns // entry.timed_replays if entry.timed_replays else 0,
        (entry.replay_host_ns - first) // (replays - 1) if replays > 1 else first,
    )


def _unpaid(entries: Sequence[LedgerGraph], frames: tuple[Frame, ...]) -> Iterator[Finding]:
    """Graphs that are replayed, and not often enough, if every replay saved as much as it can."""
    used = [_balance(each) for each in entries if each.failure is None and each.uses]
    unpaid = [balance for balance in used if balance.loss_ns > 0]
    if sum(balance.loss_ns for balance in unpaid) < _LOSS_NS:
        return
    cost = sum(balance.cost_ns for balance in unpaid)
    uses = sum(balance.entry.uses for balance in unpaid)
    saved = sum(max(balance.saving_ns, 0) * balance.entry.uses for balance in unpaid)
    worst = max(unpaid, key=lambda balance: balance.loss_ns)
    verb = "was" if len(unpaid) == 1 else "were"
    yield Finding(
        CAPTURE_DOES_NOT_PAY,
        f"{len(unpaid):,} of {count_text(len(entries), 'graph')} captured here {verb} replayed too "
        "rarely to pay for the capture",
        frames,
        evidence=(
            f"{time_text(cost)} to capture, warm-up and preparation included; "
            f"{count_text(uses, 'replay')} saved at most {time_text(saved)}",
            _break_even(worst),
        ),
        graphs=numbers_of([balance.entry for balance in unpaid]),
    )


def _break_even(balance: _Balance) -> str:
    replay, code = time_text(balance.replay_ns), time_text(balance.code_ns)
    if balance.saving_ns > 0:
        needed = math.ceil(balance.cost_ns / balance.saving_ns)
        return (
            f"the code takes at most {code} of host time, a replay {replay}: a capture pays "
            f"off after at least {count_text(needed, 'replay')}"
        )
    if balance.gpu_ns > balance.code_ns:
        return (
            f"a replay takes {time_text(balance.gpu_ns)} on the GPU, longer than the host needs to "
            f"launch the code ({code}): replays save nothing"
        )
    return f"the code takes {code} of host time, a replay {replay}: replays save nothing"
