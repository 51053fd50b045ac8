"""Eager and replay as a training loop gets them, timed in interleaved rounds.

The figure is the period of a loop: iterations one after the other, without a synchronize. So a
round first runs iterations that are not timed, and records its events after them. Then neither the
start of an idle GPU nor the caches that the other side left count, and one iteration takes as long
as each of fifty back to back. If the GPU is the bottleneck, the host is ahead by then, and the time
between the events is that of the GPU's work alone. If the host is, the GPU waits for it between the
events as in the loop, and the time is that of the launches. (A kernel that spins while the sample
is enqueued would hide these waits, and lets the clock rise.)

A backward is timed between the forward before it and the one after it, each between its own pair of
events, in eager and in replay alike: no program has a queue of backwards alone.

A round repeats the work until its events are far enough apart for the timer, and eager, whose time
differs from one iteration to the next with what else the host does, at least
``EAGER_ITERATIONS`` times. Each round runs the sides in a random order, so that clock drift affects
all of them. The host's time to enqueue is that of the first iterations of a round: the driver makes
the host wait once about a thousand launches are queued.

All rounds use the first capture of the process. On an H200, first captures of different processes
differed by 0.2 to 0.6%, so times to be compared are measured in several processes (``--runs``).
Replays of small kernels take up to 11% longer, 0.17 us a node, once a process has launched any
kernel outside of a graph; eager runs between these replays, so that is the time reported
(docs/accuracy.md).
"""

from __future__ import annotations

import importlib
import math
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import msgspec
import torch

from cgtool.detectors.capture_errors import explain
from cgtool.devices.cuda import cupti
from cgtool.devices.cuda.capture import assemble, prepare, time_launches
from cgtool.devices.cuda.session import CudaSession
from cgtool.devices.device import CaptureWithDot, Device
from cgtool.model.capture import Caveat
from cgtool.model.failure import usage
from cgtool.model.measurements import Bench, Clock, Samples
from cgtool.model.options import BenchOptions, CaptureOptions, Progress
from cgtool.program.boundary import user_errors
from cgtool.program.phases import Backward, call, differentiable, flatten_outputs, grads
from cgtool.program.workload import Workload
from cgtool.torch_compat.patches import without_collector

TIMER_GRAIN_NS = 500.0
"""Resolution of cudaEventElapsedTime (CUDA runtime API: "around 0.5 microseconds")."""
STEADY = 0.005
STEADY_SECONDS = 3.0
MAX_ITERATIONS = 20_000
EAGER_ITERATIONS = 10
"""At least this many eager iterations in a round, if ``EAGER_SHARE`` of ``max_seconds`` is enough
for them."""
EAGER_SHARE = 0.25
LEAD_IN_MS = 10.0
"""How long iterations run before the timed ones. On an H200, replays that follow an idle GPU are up
to 1% faster than those of a loop that has run for this long."""
FEWEST_LEAD_IN = 2
"""Two, because the first begins on an idle GPU and with the caches of the other side."""
HOST_SHARE = 0.1
"""Iterations whose time on the host counts, as a share of the timed ones: with more of them, the
driver's queue would be full."""

Once = Callable[[], None]
"""Runs one iteration."""


@dataclass
class Side:
    """One thing that is timed."""

    name: str
    phase: str
    once: Once
    before: Once | None = None
    """Runs before each iteration and is not timed: the forward before a backward."""
    repeats: int = 1
    """Timed iterations of a round."""
    lead_in: int = FEWEST_LEAD_IN
    """Iterations of a round that run before the timed ones."""
    device_ns: list[float] = field(default_factory=list)
    host_ns: list[float] = field(default_factory=list)
    _events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = field(default_factory=list)
    """Pairs of events. They are kept, because creating one delays the host."""

    def measure(self, device: int) -> None:
        """Time one more round."""
        device_ns, host_ns = measure_round(self, device)
        self.device_ns.append(device_ns)
        self.host_ns.append(host_ns)

    def pairs(self, count: int) -> list[tuple[torch.cuda.Event, torch.cuda.Event]]:
        """So many pairs of events, the same ones in each round."""
        while len(self._events) < count:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._events.append((start, end))
        return self._events[:count]

    def samples(self, captures: int = 1) -> Samples:
        """All rounds, which are spread over ``captures``."""
        behind = None if self.before is None else "forward"
        return Samples(
            self.name,
            self.phase,
            tuple(self.device_ns),
            tuple(self.host_ns),
            iterations=self.repeats if behind is None else 1,
            pairs=1 if behind is None else self.repeats,
            captures=captures,
            behind=behind,
            lead_in=self.lead_in,
        )


def measure_round(side: Side, device: int) -> tuple[float, float]:
    """(device ns, host ns) of one iteration of a loop: the mean of a round."""
    once, before = side.once, side.before
    host: list[int] = []
    torch.cuda.synchronize(device)
    for _ in range(side.lead_in):
        if before is not None:
            before()
        clock = time.perf_counter_ns()
        once()
        host.append(time.perf_counter_ns() - clock)
    if before is None:
        pairs = side.pairs(1)
        [(start, end)] = pairs
        start.record()
        for _ in range(side.repeats):
            once()
        end.record()
    else:
        pairs = side.pairs(side.repeats)
        for start, end in pairs:
            before()
            start.record()
            once()
            end.record()
    torch.cuda.synchronize(device)
    device_ns = 1e6 * sum(start.elapsed_time(end) for start, end in pairs)
    return device_ns / side.repeats, fmean(host[: max(1, round(side.repeats * HOST_SHARE))])


def choose_iterations(
    side: Side, device: int, min_round_ms: float, *, fewest: int = 1, max_round_ms: float = math.inf
) -> None:
    """Choose the iterations of a round: those that are timed take ``min_round_ms``, and are at
    least ``fewest``, as far as these take no longer than ``max_round_ms``."""
    side.repeats = 3
    device_ns, host_ns = measure_round(side, device)
    iteration_ms = max(device_ns, host_ns, 1.0) / 1e6
    round_ms = max(min_round_ms, min(fewest * iteration_ms, max_round_ms))
    side.repeats = max(1, min(MAX_ITERATIONS, round(round_ms / iteration_ms)))
    lead_in_ms = min(LEAD_IN_MS, max_round_ms)
    side.lead_in = max(FEWEST_LEAD_IN, min(MAX_ITERATIONS, round(lead_in_ms / iteration_ms)))


def _settle(side: Side, device: int, options: BenchOptions, sides: int) -> None:
    """Choose the number of repeats, then run until two consecutive medians agree."""
    choose_iterations(
        side,
        device,
        options.min_round_ms,
        fewest=EAGER_ITERATIONS if side.name == "eager" else 1,
        max_round_ms=EAGER_SHARE * options.max_seconds * 1e3 / options.rounds / sides,
    )
    deadline = time.monotonic() + STEADY_SECONDS
    last = 0.0
    while time.monotonic() < deadline:
        middle = sorted(measure_round(side, device)[0] for _ in range(3))[1]
        if abs(middle - last) <= STEADY * middle:
            return
        last = middle


def sides_of(session: CudaSession) -> dict[str, list[Side]]:
    """The eager and the replay side of each phase."""
    parts = session.workload.parts

    def eager_forward() -> None:
        for part in parts:
            call(part)

    ready: list[Backward] = []

    def run_forward() -> None:
        ready.clear()
        for part in reversed(parts):
            backward = differentiable(part, flatten_outputs(call(part)))
            if backward is not None:
                ready.append(backward)

    def run_backward() -> None:
        for backward in ready:
            grads(backward, session.options.allow_unused_input)

    def eager_both() -> None:
        for part in parts:
            session.iterate(part)

    eager: dict[str, tuple[Once, Once | None]] = {
        "step": (eager_forward, None),
        "forward": (eager_forward, None),
        "backward": (run_backward, run_forward),
        "both": (eager_both, None),
    }
    return {
        phase: [Side("eager", phase, *eager[phase]), Side("replay", phase, *replayed)]
        for phase, replayed in replays(session).items()
    }


def replays(session: CudaSession) -> dict[str, tuple[Once, Once | None]]:
    """One replay of each phase, and the work that must run directly before it."""
    graphs = session.graphs

    def of(*names: str) -> Once:
        calls: list[Once] = [graph.graph.replay for graph in graphs if graph.phase in names]

        def back_to_back() -> None:
            for replay in calls:
                replay()

        return calls[0] if len(calls) == 1 else back_to_back

    if session.workload.kind == "step":
        # Without a warm-up, it is known to be a step only once its graph has another name.
        return {"step": (of("step", "forward"), None)}
    phases: dict[str, tuple[Once, Once | None]] = {"forward": (of("forward"), None)}
    if any(graph.phase == "backward" for graph in graphs):
        phases["backward"] = (of("backward"), of("forward"))
        phases["both"] = (of("forward", "backward"), None)
    return phases


def run(
    device: Device,
    workload: Workload,
    capture_options: CaptureOptions,
    options: BenchOptions,
    progress: Progress,
) -> CaptureWithDot:
    """Capture, time, and return the capture with its raw samples.

    Raises CgtoolError: exit 2 for a phase that the workload does not have.
    """
    session = prepare(device, workload, capture_options, progress)
    time_launches(session)
    phases = sides_of(session)
    if options.phase is not None:
        if options.phase not in phases:
            raise usage(f"--phase {options.phase}: {workload.spec} has {', '.join(phases)}")
        phases = {options.phase: phases[options.phase]}
    bench = measure(session, phases, options, progress)
    capture, raw = assemble(session)
    return msgspec.structs.replace(capture, bench=bench), raw


def measure(
    session: CudaSession, phases: dict[str, list[Side]], options: BenchOptions, progress: Progress
) -> Bench:
    """Time interleaved rounds of every side; the raw samples are kept."""
    sides = [side for pair in phases.values() for side in pair]
    clock = ClockWatch(session.device.index)
    order = random.Random(0)
    part = session.workload.parts[0]
    deadline = time.monotonic() + options.max_seconds
    stream = torch.cuda.stream(session.stream)
    with without_collector(), user_errors(part, "bench", explain), stream:
        for side in sides:
            progress(f"settle {side.name} {side.phase}")
            _settle(side, session.device.index, options, len(sides))
        for number in range(options.rounds):
            progress(f"round {number + 1}/{options.rounds}")
            clock.sample()
            for side in order.sample(sides, len(sides)):
                side.measure(session.device.index)
            if time.monotonic() > deadline:
                session.caveats.append(
                    Caveat(
                        "time-limit",
                        f"stopped after {number + 1} of {options.rounds} rounds at the limit "
                        f"of {options.max_seconds:g} s",
                    )
                )
                break
        clock.sample()
    return Bench(
        samples=tuple(side.samples() for side in sides),
        clock=clock.result(),
        timer_grain_ns=TIMER_GRAIN_NS,
    )


# NVML clocks-event reasons that slow kernels down (nvml.h); idle and application clocks do not.
_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


class ClockWatch:
    """Samples clocks, temperature and throttling; no result without NVML (nvidia-ml-py)."""

    def __init__(self, device: int) -> None:
        self._nvml: Any = None
        self._sm: list[int] = []
        self._memory: list[int] = []
        self._temperature: list[int] = []
        self._power: list[float] = []
        self._reasons: set[str] = set()
        self._since_us = 0
        self._profiled = cupti.held()
        try:
            nvml = importlib.import_module("pynvml")
            nvml.nvmlInit()
            uuid = str(torch.cuda.get_device_properties(device).uuid)
            self._handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())
            self._nvml = nvml
            self._since_us = int(time.time() * 1e6)
        except Exception:
            # Not installed, no permission, or the device has another name: the clock is unknown.
            self._nvml = None

    def sample(self) -> None:
        nvml = self._nvml
        if nvml is None:
            return
        try:
            self._sm.append(nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM))
            self._memory.append(nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_MEM))
            self._temperature.append(nvml.nvmlDeviceGetTemperature(self._handle, 0))
            self._power.append(nvml.nvmlDeviceGetPowerUsage(self._handle) / 1000)
            bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)
            self._reasons |= {name for bit, name in _REASONS.items() if bits & bit}
        except Exception:
            self._nvml = None

    def others(self) -> int | None:
        """How many other processes used the GPU since this watch began; None when NVML does not
        report it, as in most containers."""
        nvml = self._nvml
        if nvml is None:
            return None
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(self._handle, self._since_us)
        except Exception:
            # "Not found" when no process used the GPU, "not supported" where NVML cannot report it.
            return None
        own = os.getpid()
        pids = {int(sample.pid) for sample in samples if sample.smUtil > 0}
        # In a container the driver's process ids differ from those that the process sees: one of
        # those that used the GPU is this one.
        return len(pids - {own}) if own in pids else max(0, len(pids) - 1)

    def result(self) -> Clock | None:
        if not self._sm:
            return Clock(profiled=True) if self._profiled else None
        return Clock(
            tuple(self._sm),
            tuple(self._memory),
            tuple(self._temperature),
            tuple(self._power),
            tuple(sorted(self._reasons)),
            self.others(),
            self._profiled,
        )
