"""The measuring behind time_gate.py: its worker processes, and what they plant."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ME = (sys.executable, str(Path(__file__).resolve().with_name("time_gate.py")))
SAMPLES = ("mlp", "convnet", "transformer")
WORKERS, AT_ONCE = 24, 6
ROUNDS = 12
SEPARATE, INTERLEAVED = 0.03, 0.005
PAIR_WORKERS, PAIR_SECONDS = 2, 6.0
"""At least so many processes, and one on each GPU; of a sample in a process."""
MORE_SECONDS = {"mlp": 4, "transformer": 12}
"""So many times as long: their pairs differ most."""
RUNS = 6
"""Timed from the command line, for what one of them takes."""
BASE_CYCLES = 1000
"""Of the kernel that both sides of an interleaved comparison have."""


def slowed(load: Callable[[], Any], cycles: int | None) -> Callable[[], Any]:
    """A workload whose first callable spins so many cycles after its own work."""
    import torch

    def loaded() -> Any:
        workload = load()
        if cycles is None:
            return workload
        part, *others = workload.parts

        def function(*args: Any, **kwargs: Any) -> Any:
            result = part.function(*args, **kwargs)
            torch.cuda._sleep(cycles)
            return result

        slow = dataclasses.replace(part, function=function)
        return dataclasses.replace(workload, parts=(slow, *others))

    return loaded


def sample(name: str) -> Callable[[], Any]:
    from cgtool.program.load import load

    return lambda: load(str(ROOT / "samples" / f"{name}.py:build"), device="cuda")


def calibrate() -> dict[str, Any]:
    """The cost of a spinning kernel at the end of a graph: a fixed part, and one per cycle."""
    import torch

    from cgtool.devices.cuda.bench import Side, measure_round

    torch.cuda.init()
    x = torch.zeros(1024, device="cuda")

    def chain(cycles: int | None) -> float:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(20):
                x.add_(1)
            if cycles is not None:
                torch.cuda._sleep(cycles)
        side = Side("replay", "forward", graph.replay, repeats=100)
        return median(measure_round(side, 0)[0] for _ in range(9))

    x.add_(1)
    torch.cuda._sleep(10)
    torch.cuda.synchronize()
    without, short, long = chain(None), chain(1_000), chain(21_000)
    per_cycle = (long - short) / 20_000
    return {
        "gpus": torch.cuda.device_count(),
        "per_cycle_ns": per_cycle,
        "fixed_ns": short - without - 1_000 * per_cycle,
    }


@dataclasses.dataclass
class Ready:
    """One workload, captured: as ``cgtool bench`` does it in a process of its own."""

    session: Any
    side: Any


def ready(load: Callable[[], Any]) -> Ready:
    """Capture as ``cgtool bench`` does. Nothing is dropped meanwhile: what is captured later would
    lie in what came back."""
    from cgtool.devices.cuda.bench import sides_of
    from cgtool.devices.cuda.capture import prepare
    from cgtool.devices.cuda.device import CudaDevice
    from cgtool.model.measurements import whole
    from cgtool.model.options import CaptureOptions

    session = prepare(CudaDevice(), load(), CaptureOptions(), lambda _text: None)
    phases = sides_of(session)
    sides = phases[whole(phases)]
    return Ready(session, next(side for side in sides if side.name == "replay"))


def run_of(workload: Ready) -> list[float]:
    """One run: rounds of replays of one capture."""
    import torch

    from cgtool.devices.cuda.bench import choose_iterations, measure_round

    with torch.cuda.stream(workload.session.stream):
        choose_iterations(workload.side, 0, 5.0)
        # Until the clock is steady.
        for _ in range(3):
            measure_round(workload.side, 0)
        return [measure_round(workload.side, 0)[0] for _ in range(ROUNDS)]


def worker(number: int, task: dict[str, Any], out: Path, lock: Path) -> None:
    """Everything that one process measures; the GPU is its own meanwhile."""
    import torch

    import cgtool.devices.cuda.pairs  # noqa: F401
    from cgtool.devices.cuda.bench import ClockWatch
    from cgtool.devices.cuda.device import CudaDevice

    torch.cuda.init()
    torch.zeros(1, device="cuda")
    loads = {name: sample(name) for name in SAMPLES}
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        started = time.perf_counter()
        clock = ClockWatch(0)
        clock.sample()
        samples = (_separate if task["kind"] == "separate" else _interleaved)(number, task, loads)
        clock.sample()
        seconds = time.perf_counter() - started
    watched = clock.result()
    environment = CudaDevice("cuda:0").environment()
    out.write_text(
        json.dumps(
            {
                "samples": samples,
                "gpu": str(torch.cuda.get_device_properties(0).uuid),
                "seconds": seconds,
                "sm_mhz": list(watched.sm_mhz) if watched else [],
                "throttled": list(watched.throttle_reasons) if watched else [],
                "device": environment.device,
                "driver": environment.driver,
                "torch": torch.__version__,
            }
        )
    )


def _separate(number: int, task: dict[str, Any], loads: dict[str, Any]) -> dict[str, Any]:
    """Capture one sample, as it is or longer, and measure it: the first capture of a process lies
    elsewhere than those after it."""
    name, side = task["wanted"][number]
    cycles = task["cycles"][name]["extra"] if side == "head" else None
    return {name: {side: run_of(ready(slowed(loads[name], cycles)))}}


def _interleaved(number: int, task: dict[str, Any], loads: dict[str, Any]) -> dict[str, Any]:
    import gc

    import torch

    from cgtool.devices.cuda import pairs
    from cgtool.devices.cuda.device import CudaDevice
    from cgtool.model.options import BenchOptions, CaptureOptions

    samples: dict[str, Any] = {}
    device = CudaDevice("cuda:0")
    stream = torch.cuda.Stream()
    order = random.Random(number)
    for name in task["cycles"]:
        longer = task["cycles"][name]["longer"]
        entries = [
            pairs.Entry(side, slowed(loads[name], cycles), CaptureOptions())
            for side, cycles in (("base", BASE_CYCLES), ("again", BASE_CYCLES), ("head", longer))
        ]
        pads = pairs.AddressShifter(0, number)
        gc.collect()
        gc.freeze()
        gc.disable()
        for entry in entries:
            pairs.once(entry, stream, device, BenchOptions())
            entry.forget()
        started = time.perf_counter()
        seconds = task["seconds"] * MORE_SECONDS.get(name, 1)
        while time.perf_counter() - started < seconds:
            pads.move()
            for entry in order.sample(entries, len(entries)):
                pairs.once(entry, stream, device, BenchOptions())
        gc.enable()
        samples[name] = {entry.name: entry.by_capture() for entry in entries}
        samples[name]["addresses"] = {entry.name: len(entry.addresses) for entry in entries}
        samples[name]["seconds"] = time.perf_counter() - started
    return samples


def measure(names: Sequence[str], workers: int, pair_seconds: float, out: Path) -> dict[str, Any]:
    """All raw rounds of these samples, written to ``out`` as they come. ``workers`` on every GPU,
    for each sample and side."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        # In a process of its own: what it leaves behind must not lie in the way of the others.
        subprocess.run([*ME, "--calibrate", str(place / "known")], check=True)
        known = json.loads((place / "known").read_text())
        gpus = known["gpus"]
        # How long a replay takes in a process of its own.
        pilots = [(name, "base") for name in names for _ in range(max(3, gpus))]
        pilot_runs = _workers(
            place / "pilots", len(pilots), {"kind": "separate", "wanted": pilots}, gpus
        )
        known["replay_ns"] = {
            name: median(
                median(run["samples"][name]["base"]) for run in pilot_runs if name in run["samples"]
            )
            for name in names
        }
        cycles = {
            name: {
                "extra": _cycles(known, SEPARATE * replay_ns - known["fixed_ns"]),
                "longer": BASE_CYCLES + _cycles(known, INTERLEAVED * replay_ns),
            }
            for name, replay_ns in known["replay_ns"].items()
        }
        raw: dict[str, Any] = {"calibrated": known, "cycles": cycles}
        raw["run_seconds"] = _bench_seconds()
        wanted = [
            (name, side) for name in names for side in ("base", "head") for _ in range(workers)
        ]
        random.Random(0).shuffle(wanted)
        # Worker n runs on GPU n % gpus: the same on every one.
        wanted = [pair for pair in wanted for _ in range(gpus)]
        raw["separate"] = _workers(
            place / "separate",
            len(wanted),
            {"kind": "separate", "cycles": cycles, "wanted": wanted},
            gpus,
        )
        raw["interleaved"] = []
        out.write_text(json.dumps(raw))
        raw["interleaved"] = _workers(
            place / "pairs",
            max(PAIR_WORKERS, gpus) if pair_seconds else 0,
            {"kind": "interleaved", "cycles": cycles, "seconds": pair_seconds},
            gpus,
        )
    raw["seconds"] = time.perf_counter() - began
    out.write_text(json.dumps(raw))
    return raw


def _bench_seconds() -> float:
    """The time of one run of ``cgtool bench --runs``, from the command line to its end."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "cgtool.cli.app", "bench", str(ROOT / "samples/mlp.py:build"),
             "--runs", str(RUNS), "--save", f"{folder}/runs.json"],
            check=True, capture_output=True,
        )  # fmt: skip
    return (time.perf_counter() - started) / RUNS


def _cycles(known: dict[str, Any], cost_ns: float) -> int:
    return max(0, round(cost_ns / float(known["per_cycle_ns"])))


def _workers(place: Path, count: int, task: dict[str, Any], gpus: int) -> list[dict[str, Any]]:
    """The times of so many processes: one at a time on each GPU; the next ones start meanwhile."""
    place.mkdir()
    (place / "task").write_text(json.dumps(task))
    waiting = [list(range(gpu, count, gpus)) for gpu in range(gpus)]
    running: list[dict[int, subprocess.Popen[bytes]]] = [{} for _ in range(gpus)]
    while any(waiting) or any(running):
        for gpu in range(gpus):
            while waiting[gpu] and len(running[gpu]) < AT_ONCE:
                number = waiting[gpu].pop(0)
                running[gpu][number] = subprocess.Popen(
                    [*ME, "--worker", str(number), str(place), "--lock", str(place / f"lock{gpu}")],
                    env={**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu)} if gpus > 1 else None,
                )
            for number, process in list(running[gpu].items()):
                if process.poll() is not None:
                    if process.returncode:
                        raise SystemExit(f"worker {number} ended with {process.returncode}")
                    del running[gpu][number]
        time.sleep(0.05)
    return [json.loads((place / f"{number}.json").read_text()) for number in range(count)]
