"""Replays of two entries in one process: pairs of captures, one of each.

Rounds of one capture have almost no noise, but two captures of the same code differ, because their
memory is at different addresses. So the unit is a pair: addresses are shifted, and then each entry,
in random order, is loaded, warmed up, captured, timed for a few rounds and dropped. The second gets
the memory that the first has freed, at the same addresses as far as both request the same sizes.

A capture made after others were dropped takes other times than the first capture of a process
(``cgtool.analysis.timing.regression`` has the figures), so it is compared only with the other
capture of its pair.
"""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median, stdev
from typing import Any

import msgspec
import torch

from cgtool.detectors.capture_errors import explain
from cgtool.devices.cuda.bench import (
    TIMER_GRAIN_NS,
    ClockWatch,
    Side,
    choose_iterations,
    replays,
)
from cgtool.devices.cuda.capture import assemble, prepare, time_launches
from cgtool.devices.cuda.session import CudaSession
from cgtool.devices.device import CaptureWithDot, Device, quiet
from cgtool.model.capture import Caveat
from cgtool.model.failure import usage
from cgtool.model.measurements import Bench, Samples, whole
from cgtool.model.options import FEWEST_PAIRS, PAIRS_A_LOOK, BenchOptions, CaptureOptions, Progress
from cgtool.program.boundary import user_errors
from cgtool.program.load import seed_all
from cgtool.program.phases import warmup_iters
from cgtool.program.workload import Workload
from cgtool.torch_compat.patches import without_collector

_ROUNDS = 3
"""Rounds of each capture. Instantiating again for each round spreads more, not less (H200)."""
_MOST_PAIRS = 1000
_PADS = 3
_PAD_BYTES = 2 << 20
"""The driver's unit of device memory (cuMemGetAllocationGranularity of GPUs since Pascal)."""
_LONGEST_PAD = 32


@dataclass
class Entry:
    """One of the two entries: how to load it, and the times of its captures."""

    name: str
    """``replay`` or ``against``."""
    load: Callable[[], Workload]
    options: CaptureOptions
    iterations: tuple[int, int] | None = None
    """Timed ones of a round, and those before them; the same for all captures."""
    device_ns: list[float] = field(default_factory=list)
    host_ns: list[float] = field(default_factory=list)
    samples: Samples | None = None
    """Times of all captures so far."""
    addresses: set[int] = field(default_factory=set)
    """Address of its first tensor, in each capture."""

    def forget(self) -> None:
        """Drop the first capture of the process: only that one gets fresh memory."""
        self.device_ns.clear()
        self.host_ns.clear()
        self.addresses.clear()

    def by_capture(self) -> list[list[float]]:
        """Device times, capture by capture."""
        starts = range(0, len(self.device_ns), _ROUNDS)
        return [self.device_ns[start : start + _ROUNDS] for start in starts]


def run(
    device: Device, entries: tuple[Entry, Entry], options: BenchOptions, progress: Progress
) -> CaptureWithDot:
    """Capture the first entry, and time replays of both; the capture with the raw samples.

    Raises CgtoolError: exit 2 for a phase that an entry does not have, 4 for what its code raises.
    """
    first = entries[0]
    session = prepare(device, first.load(), first.options, progress)
    time_launches(session)
    capture, raw = assemble(session)
    del session
    more: list[Caveat] = []
    bench = measure(entries, device, options, more, progress)
    return msgspec.structs.replace(capture, bench=bench, caveats=(*capture.caveats, *more)), raw


def measure(
    entries: tuple[Entry, Entry],
    device: Device,
    options: BenchOptions,
    caveats: list[Caveat],
    progress: Progress,
) -> Bench:
    """Time pairs until the ratio is known to ``options.precision``, or ``options.max_seconds``.

    Raises CgtoolError: exit 2 for a phase that an entry does not have, 4 for what its code raises.
    """
    stream = torch.cuda.Stream(device.index)
    pads, clock, order = AddressShifter(device.index), ClockWatch(device.index), random.Random(0)
    deadline = time.monotonic() + options.max_seconds
    with without_collector():
        # Existing objects stay: each collection looks only at those that a pair has left.
        gc.freeze()
        progress("first pair")
        for entry in entries:
            once(entry, stream, device, options)
        for entry in entries:
            entry.forget()
        for number in range(_MOST_PAIRS):
            progress(f"pair {number + 1}")
            clock.sample()
            pads.move()
            for entry in order.sample(entries, 2):
                once(entry, stream, device, options)
            done = number + 1
            # Only at intervals: tested after every pair, it would sooner pass by chance.
            tested = done >= FEWEST_PAIRS and done % PAIRS_A_LOOK == 0
            if tested and _error(*entries) <= options.precision:
                break
            if time.monotonic() > deadline:
                caveats.append(
                    Caveat(
                        "time-limit",
                        f"stopped after {done} pairs at the limit of {options.max_seconds:g} s: "
                        f"the standard error of the ratio is {_error(*entries):.2%}, above the "
                        f"target of {options.precision:.2%}",
                    )
                )
                break
        clock.sample()
    caveats += _unmoved(entries)
    replay, against = (entry.samples for entry in entries)
    assert replay is not None and against is not None
    return Bench(
        # Whole iterations are compared, even if only one of them has a backward.
        samples=(replay, msgspec.structs.replace(against, phase=replay.phase)),
        clock=clock.result(),
        timer_grain_ns=TIMER_GRAIN_NS,
    )


def once(entry: Entry, stream: Any, device: Device, options: BenchOptions) -> None:
    """Load, capture, time and drop an entry."""
    workload = entry.load()
    seed_all(entry.options.seed)
    iterations, _ = warmup_iters(workload, entry.options)
    session = CudaSession(workload, entry.options, device=device, stream=stream, keep_graph=False)
    with device.eager_stream(stream):
        session.run_eagerly(iterations, quiet, explain)
    device.synchronize()
    session.capture_phases()
    phases = replays(session)
    phase = options.phase or whole(phases)
    if phase not in phases:
        raise usage(f"--phase {phase}: {workload.spec} has {', '.join(phases)}")
    side = Side(entry.name, phase, *phases[phase], device_ns=entry.device_ns, host_ns=entry.host_ns)
    with user_errors(workload.parts[0], "bench", explain), torch.cuda.stream(stream):
        if entry.iterations is None:
            choose_iterations(side, device.index, options.min_round_ms)
            entry.iterations = side.repeats, side.lead_in
        side.repeats, side.lead_in = entry.iterations
        for _ in range(_ROUNDS):
            side.measure(device.index)
    entry.samples = side.samples(len(entry.device_ns) // _ROUNDS)
    entry.addresses.update(_first_address(workload))
    # Before the next entry is loaded.
    del side, phases, session, workload
    gc.collect()


def _first_address(workload: Workload) -> list[int]:
    for part in workload.parts:
        for _, parameter in part.parameters():
            return [parameter.data_ptr()]
    return []


def _unmoved(entries: Sequence[Entry]) -> list[Caveat]:
    return [
        Caveat(
            "same-weights",
            f"the weights of {'ENTRY' if entry.name == 'replay' else 'the other entry'} were at "
            "the same address in all captures, and the address alone can change times by up to "
            "0.5%: construct the model inside the factory, so that each capture gets new weights",
        )
        for entry in entries
        if len(entry.addresses) == 1 and len(entry.device_ns) > _ROUNDS
    ]


def _error(entry: Entry, against: Entry) -> float:
    """Relative standard error of the ratio, from the spread of the pairs."""
    ratios = [
        math.log(median(top) / median(bottom))
        for top, bottom in zip(entry.by_capture(), against.by_capture(), strict=True)
    ]
    return stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else math.inf


class AddressShifter:
    """Allocations of random sizes, which shift the addresses of what is allocated next."""

    def __init__(self, device: int, seed: int = 0) -> None:
        self._device = device
        self._draw = random.Random(seed)
        self._held: list[torch.Tensor] = []

    def move(self) -> None:
        """Return cached memory to the driver and allocate other sizes; none if memory is full."""
        self._held.clear()
        torch.cuda.empty_cache()
        try:
            for _ in range(_PADS):
                size = self._draw.randint(1, _LONGEST_PAD) * _PAD_BYTES
                self._held.append(torch.empty(size, dtype=torch.uint8, device=self._device))
        except torch.OutOfMemoryError:
            self._held.clear()
