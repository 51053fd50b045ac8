"""What `bench` times is the period of a loop, on a GPU made of two clocks and a queue."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from cgtool.devices.cuda import bench, profile
from cgtool.devices.cuda.bench import Side, choose_iterations, measure_round

START_UP_NS = 6_000
"""What an iteration takes longer on an idle GPU."""
QUEUE = 64
"""Launches that may wait; the host waits for the oldest one then."""
RECORD_NS = 100


@dataclass
class Gpu:
    """Two clocks in nanoseconds: of the host, and of the device, which works off a queue."""

    host: float = 0.0
    device: float = 0.0
    ends: list[float] = field(default_factory=list)

    def launch(self, host_ns: float, device_ns: float, *, start_up_ns: float = 0.0) -> None:
        if len(self.ends) >= QUEUE:
            self.host = max(self.host, self.ends[-QUEUE])
        self.host += host_ns
        idle = self.device < self.host
        self.device = max(self.device, self.host) + device_ns + idle * start_up_ns
        self.ends.append(self.device)

    def synchronize(self, _device: object = None) -> None:
        self.host = max(self.host, self.device)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu()

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.reached = 0.0

        def record(self) -> None:
            gpu.host += RECORD_NS
            self.reached = max(gpu.host, gpu.device)

        def elapsed_time(self, end: Event) -> float:
            return (end.reached - self.reached) / 1e6

    monkeypatch.setattr(bench.torch.cuda, "Event", Event)
    monkeypatch.setattr(bench.torch.cuda, "synchronize", gpu.synchronize)
    monkeypatch.setattr(bench.time, "perf_counter_ns", lambda: gpu.host)
    return gpu


@pytest.mark.parametrize("repeats", [1, 3, 50])
def test_one_replay_and_fifty_take_the_same(gpu: Gpu, repeats: int) -> None:
    def replay() -> None:
        gpu.launch(10_000, 100_000, start_up_ns=START_UP_NS)

    device_ns, host_ns = measure_round(Side("replay", "step", replay, repeats=repeats), 0)
    assert device_ns == pytest.approx(100_000)
    assert host_ns == pytest.approx(10_000)


def test_where_the_host_is_slower_the_figure_is_the_time_of_the_launches(gpu: Gpu) -> None:
    def eager() -> None:
        for _ in range(100):
            gpu.launch(8_000, 2_000)

    device_ns, host_ns = measure_round(Side("eager", "step", eager, repeats=10), 0)
    assert device_ns == pytest.approx(800_000, rel=1e-3)
    assert host_ns == pytest.approx(800_000, rel=1e-3)


def test_an_iteration_that_is_launch_bound_in_part_is_hidden_by_the_rest_of_the_loop(
    gpu: Gpu,
) -> None:
    """The forward of a loop is launched while the backward before it runs."""

    def eager() -> None:
        for _ in range(10):
            gpu.launch(8_000, 2_000)
        gpu.launch(8_000, 500_000)

    device_ns, host_ns = measure_round(Side("eager", "step", eager, repeats=1), 0)
    assert device_ns == pytest.approx(520_000)
    assert host_ns == pytest.approx(88_000)


def test_the_host_is_not_timed_while_it_waits_for_the_queue(gpu: Gpu) -> None:
    def eager() -> None:
        for _ in range(40):
            gpu.launch(5_000, 20_000)

    device_ns, host_ns = measure_round(Side("eager", "step", eager, repeats=10), 0)
    assert device_ns == pytest.approx(800_000)
    assert host_ns == pytest.approx(200_000)


@pytest.mark.parametrize("repeats", [1, 20])
def test_a_backward_is_timed_between_two_forwards(gpu: Gpu, repeats: int) -> None:
    def forward() -> None:
        gpu.launch(10_000, 100_000, start_up_ns=START_UP_NS)

    def backward() -> None:
        gpu.launch(10_000, 60_000, start_up_ns=START_UP_NS)

    side = Side("replay", "backward", backward, forward, repeats=repeats)
    device_ns, host_ns = measure_round(side, 0)
    assert device_ns == pytest.approx(60_000)
    assert host_ns == pytest.approx(10_000)
    assert side.samples().pairs == repeats


def test_replays_back_to_back_in_a_profile_begin_behind_others(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    def captured(device_ns: float) -> SimpleNamespace:
        def replay() -> None:
            gpu.launch(10_000, device_ns, start_up_ns=START_UP_NS)

        return SimpleNamespace(graph=SimpleNamespace(replay=replay), typical_launch_ns=10_000)

    monkeypatch.setattr(bench.torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(profile, "empty_ns", lambda _rounds: [0.0])
    monkeypatch.setattr(profile, "once_ns", lambda replay, _launch_ns: replay() or 1.0)
    device = SimpleNamespace(index=0, synchronize=gpu.synchronize)
    session = SimpleNamespace(
        graphs=[captured(100_000), captured(60_000)], stream=None, device=device
    )
    times = list(profile._times(session, [None, None], 3))  # type: ignore[arg-type]
    assert sum(graph.queued_ns or 0 for graph in times) == pytest.approx(160_000)


@pytest.mark.parametrize(
    ("iteration_ms", "fewest", "max_round_ms", "repeats"),
    [
        (0.05, 1, 100.0, 100),
        (15.0, 1, 100.0, 1),
        (15.0, 10, 1000.0, 10),
        (15.0, 10, 60.0, 4),
        (900.0, 10, 60.0, 1),
    ],
)
def test_a_slow_eager_iteration_is_repeated_as_often_as_there_is_time(
    gpu: Gpu, iteration_ms: float, fewest: int, max_round_ms: float, repeats: int
) -> None:
    side = Side("eager", "step", lambda: gpu.launch(1000, iteration_ms * 1e6))
    choose_iterations(side, 0, 5.0, fewest=fewest, max_round_ms=max_round_ms)
    assert side.repeats == repeats


def test_a_round_begins_when_the_device_has_the_speed_of_a_loop(gpu: Gpu) -> None:
    """For its first 8 ms after a pause the device is faster."""
    resumed = 0.0

    def replay() -> None:
        nonlocal resumed
        if gpu.host >= gpu.device:
            resumed = gpu.host
        gpu.launch(10_000, 99_000 if gpu.device - resumed < 8e6 else 100_000)

    side = Side("replay", "step", replay)
    choose_iterations(side, 0, 5.0)
    device_ns, _host_ns = measure_round(side, 0)
    assert device_ns == pytest.approx(100_000)
