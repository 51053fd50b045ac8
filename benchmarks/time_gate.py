"""How far the three answers on times can be trusted: false alarms, slowdowns found, and the cost.

    python benchmarks/time_gate.py                        measures on a GPU (8 minutes), then judges
    python benchmarks/time_gate.py --judge time-gate.json judges again, without a GPU

Separate processes: each worker measures every sample as it is, and with an extra kernel that makes
a replay 3 % longer. A comparison draws 10 workers for the baseline and others for the change, and
looks after 3, 5, 8 and 12 of these, as `cgtool bench --baseline` does. There are far more
comparisons than workers: they share runs.

Interleaved: in one process the sample, the sample once more, and the sample with a kernel that is
0.5 % of a replay longer, captured and timed in turn, as `cgtool bench --against` does. A
comparison is a window of consecutive pairs; windows overlap.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ME = (sys.executable, str(Path(__file__).resolve()))
SAMPLES = ("mlp", "convnet", "transformer")
WORKERS, AT_ONCE = 64, 8
CAPTURES, ROUNDS = 5, 6
SEPARATE, INTERLEAVED = 0.03, 0.005
BASE_RUNS, FIRST, MOST = 10, 3, 12
COMPARISONS = 300
"""For each sample, of the same code and of the slower one."""
PAIR_WORKERS, PAIR_SECONDS = 3, 25.0
BASE_CYCLES = 1000
"""Of the kernel that both sides of an interleaved comparison have."""


# --- measuring


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
    from cgtool.entry.load import load

    return lambda: load(str(ROOT / "samples" / f"{name}.py:build"), device="cuda")


def calibrate() -> dict[str, Any]:
    """What a spinning kernel costs in a graph: a fixed part and one per cycle; and how long a
    replay of each sample takes."""
    import torch

    from cgtool.cuda.bench import Side, measure_round

    torch.cuda.init()
    many = 100
    x = torch.zeros(1024, device="cuda")

    def chain(cycles: int | None) -> float:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(many):
                x.add_(1)
                if cycles is not None:
                    torch.cuda._sleep(cycles)
        side = Side("replay", "forward", graph.replay, repeats=20)
        return median(measure_round(side, 0)[0] for _ in range(9)) / many

    x.add_(1)
    torch.cuda._sleep(10)
    torch.cuda.synchronize()
    without, short, long = chain(None), chain(1_000), chain(21_000)
    per_cycle = (long - short) / 20_000
    runs = {name: run_of(sample(name), random.Random(0)) for name in SAMPLES}
    return {
        "per_cycle_ns": per_cycle,
        "fixed_ns": short - without - 1_000 * per_cycle,
        "replay_ns": {name: median(map(median, captures)) for name, captures in runs.items()},
    }


def run_of(load: Callable[[], Any], draw: random.Random) -> list[list[float]]:
    """One run, as ``cgtool bench`` measures it: rounds of several captures of one workload."""
    import torch

    from cgtool.cuda.bench import Side, measure_round, repeats_for
    from cgtool.cuda.pairs import whole
    from cgtool.cuda.recapture import Pads, recapture, replays
    from cgtool.entry import phases
    from cgtool.hazards.errors import explain
    from cgtool.model.options import CaptureOptions

    options, stream = CaptureOptions(), torch.cuda.Stream()
    pads = Pads(0, draw.randrange(1 << 30))
    pads.move()
    workload = load()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        phases.warm_up(phases.Phases(workload, options), 3, lambda _text: None, explain)
    torch.cuda.synchronize()
    captures: list[list[float]] = []
    repeats = 0
    for _ in range(CAPTURES):
        pads.move()
        graphs = recapture(workload, options, stream)
        found = replays(workload.kind, graphs.made)
        phase = whole(workload.kind, tuple(found))
        side = Side("replay", phase, *found[phase])
        with torch.cuda.stream(stream):
            repeats = repeats or repeats_for(side, 0, 5.0)
            side.repeats = repeats
            captures.append([measure_round(side, 0)[0] for _ in range(ROUNDS)])
        del side, found, graphs
    return captures


def worker(number: int, task: dict[str, Any], out: Path, lock: Path) -> None:
    """Everything that one process measures; the GPU is its own meanwhile."""
    import torch

    import cgtool.cuda.pairs  # noqa: F401
    from cgtool.cuda.clock import ClockWatch
    from cgtool.cuda.environment import describe

    torch.cuda.init()
    torch.zeros(1, device="cuda")
    loads = {name: sample(name) for name in SAMPLES}
    for load in loads.values():
        load()
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        started = time.perf_counter()
        clock = ClockWatch(0)
        clock.sample()
        found = (_separate if task["kind"] == "separate" else _interleaved)(number, task, loads)
        clock.sample()
        seconds = time.perf_counter() - started
    watched = clock.result()
    out.write_text(
        json.dumps(
            {
                "samples": found,
                "seconds": seconds,
                "sm_mhz": list(watched.sm_mhz) if watched else [],
                "throttled": list(watched.throttle_reasons) if watched else [],
                "device": describe(0).device,
                "driver": describe(0).driver,
                "torch": torch.__version__,
            }
        )
    )


def _separate(number: int, task: dict[str, Any], loads: dict[str, Any]) -> dict[str, Any]:
    draw = random.Random(number)
    found: dict[str, Any] = {}
    for name in draw.sample(SAMPLES, len(SAMPLES)):
        cycles = {"base": None, "head": task["cycles"][name]["extra"]}
        found[name] = {
            side: run_of(slowed(loads[name], cycles[side]), draw)
            for side in draw.sample(("base", "head"), 2)
        }
    return found


def _interleaved(number: int, task: dict[str, Any], loads: dict[str, Any]) -> dict[str, Any]:
    import gc

    import torch

    from cgtool.cuda import pairs
    from cgtool.cuda.recapture import Pads
    from cgtool.model.options import BenchOptions, CaptureOptions

    found: dict[str, Any] = {}
    stream = torch.cuda.Stream()
    order = random.Random(number)
    for name in SAMPLES:
        longer = task["cycles"][name]["longer"]
        entries = [
            pairs.Entry(side, slowed(loads[name], cycles), CaptureOptions())
            for side, cycles in (("base", BASE_CYCLES), ("again", BASE_CYCLES), ("head", longer))
        ]
        pads = Pads(0, number)
        gc.collect()
        gc.freeze()
        gc.disable()
        started = time.perf_counter()
        while time.perf_counter() - started < task["seconds"]:
            pads.move()
            for one in order.sample(entries, len(entries)):
                pairs.once(one, stream, 0, BenchOptions())
        gc.enable()
        found[name] = {one.name: pairs.by_capture(one) for one in entries}
        found[name]["addresses"] = {one.name: len(one.addresses) for one in entries}
        found[name]["seconds"] = time.perf_counter() - started
    return found


def measure(workers: int, pair_seconds: float) -> dict[str, Any]:
    """All raw rounds."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        # In a process of its own: what it leaves behind must not lie in the way of the others.
        subprocess.run([*ME, "--calibrate", str(place / "known")], check=True)
        known = json.loads((place / "known").read_text())
        cycles = {
            name: {
                "extra": _cycles(known, SEPARATE * replay_ns - known["fixed_ns"]),
                "longer": BASE_CYCLES + _cycles(known, INTERLEAVED * replay_ns),
            }
            for name, replay_ns in known["replay_ns"].items()
        }
        separate = _workers(place / "separate", workers, {"kind": "separate", "cycles": cycles})
        pairs = _workers(
            place / "pairs",
            PAIR_WORKERS,
            {"kind": "interleaved", "cycles": cycles, "seconds": pair_seconds},
        )
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "cgtool.cli.app", "bench", str(ROOT / "samples/mlp.py:build"),
             "--save", f"{folder}/run.cgt"],
            check=True, capture_output=True,
        )  # fmt: skip
    return {
        "calibrated": known,
        "cycles": cycles,
        "separate": separate,
        "interleaved": pairs,
        "run_seconds": time.perf_counter() - started,
        "seconds": time.perf_counter() - began,
    }


def _cycles(known: dict[str, Any], cost_ns: float) -> int:
    return max(0, round(cost_ns / known["per_cycle_ns"]))


def _workers(place: Path, count: int, task: dict[str, Any]) -> list[dict[str, Any]]:
    """What so many processes measured, one at a time; the next ones start meanwhile."""
    place.mkdir()
    (place / "task").write_text(json.dumps(task))
    waiting = list(range(count))
    running: dict[int, subprocess.Popen[bytes]] = {}
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            number = waiting.pop(0)
            running[number] = subprocess.Popen([*ME, "--worker", str(number), str(place)])
        for number, process in list(running.items()):
            if process.poll() is not None:
                if process.returncode:
                    raise SystemExit(f"worker {number} ended with {process.returncode}")
                del running[number]
        time.sleep(0.05)
    return [json.loads((place / f"{number}.json").read_text()) for number in range(count)]


# --- judging


def judge(raw: dict[str, Any]) -> dict[str, Any]:
    """The figures, from the raw rounds alone."""
    found: dict[str, Any] = {"spread": [], "separate": [], "interleaved": []}
    for name in SAMPLES:
        found["spread"].append(spread(name, raw))
        for side in ("base", "head"):
            found["separate"].append(separate(name, side, raw))
        for side in ("again", "head"):
            found["interleaved"].append(interleaved(name, side, raw))
    return found


def runs_of(name: str, side: str, raw: dict[str, Any]) -> list[list[float]]:
    """One flat list of rounds a worker."""
    return [
        [time for capture in one["samples"][name][side] for time in capture]
        for one in raw["separate"]
    ]


def spread(name: str, raw: dict[str, Any]) -> dict[str, Any]:
    """Relative standard deviations: of rounds in a capture, captures in a worker, workers, and
    what is left of the workers' when that of their captures is taken away."""
    captures = [one["samples"][name]["base"] for one in raw["separate"]]
    middles = [[median(rounds) for rounds in one] for one in captures]
    everything = fmean(fmean(one) for one in middles)
    rounds = median(stdev(each) for one in captures for each in one) / everything
    within = fmean(stdev(one) ** 2 for one in middles) ** 0.5 / everything
    between = stdev([fmean(one) for one in middles]) / everything
    left = max(0.0, between**2 - within**2 / CAPTURES) ** 0.5
    return {
        "sample": name,
        "replay_us": everything / 1e3,
        "rounds": rounds,
        "captures": within,
        "runs": between,
        "process": left,
    }


def separate(name: str, side: str, raw: dict[str, Any]) -> dict[str, Any]:
    """Random baselines of 10 workers against other workers of the same or the slower code."""
    from cgtool.analysis.regression import CANNOT_TELL, TOLERANCE, judge_runs, schedule
    from cgtool.analysis.stats import midmean

    base, head = runs_of(name, "base", raw), runs_of(name, side, raw)
    draw = random.Random(f"{name} {side}")
    looks = schedule(FIRST, MOST)
    verdicts: Counter[str] = Counter()
    runs = []
    for _ in range(COMPARISONS):
        chosen = draw.sample(range(len(base)), BASE_RUNS + MOST)
        first, rest = chosen[:BASE_RUNS], chosen[BASE_RUNS:]
        before, after = [base[one] for one in first], [head[one] for one in rest]
        for look in looks:
            answer = judge_runs(before, after[:look], TOLERANCE, looks=len(looks))
            if answer.verdict != CANNOT_TELL:
                break
        verdicts[answer.verdict] += 1
        runs.append(look)
    seen = fmean(map(midmean, head)) / fmean(map(midmean, base)) - 1
    return {
        "sample": name,
        "planted": SEPARATE if side == "head" else 0.0,
        "seen": seen if side == "head" else 0.0,
        "comparisons": COMPARISONS,
        **_counts(verdicts),
        "runs": fmean(runs),
        "seconds": fmean(runs) * raw["run_seconds"],
    }


def interleaved(name: str, side: str, raw: dict[str, Any]) -> dict[str, Any]:
    """Windows of consecutive pairs, each as long as ``cgtool bench --against`` would go on."""
    from cgtool.analysis.regression import PAIR_TOLERANCE, judge_pairs

    verdicts: Counter[str] = Counter()
    counts, apart, lengths = [], [], []
    for one in raw["interleaved"]:
        base, head = one["samples"][name]["base"], one["samples"][name][side]
        each = one["samples"][name]["seconds"] / len(base) * 2 / 3
        ratios = [median(b) / median(a) - 1 for a, b in zip(base, head, strict=True)]
        apart += ratios
        for start, end in windows(ratios, PAIR_TOLERANCE):
            answer = judge_pairs(base[start:end], head[start:end], PAIR_TOLERANCE, looks=1)
            verdicts[answer.verdict] += 1
            counts.append(end - start)
            lengths.append((end - start) * each)
    return {
        "sample": name,
        "planted": INTERLEAVED if side == "head" else 0.0,
        "seen": fmean(apart),
        "pair_sd": stdev(apart),
        "comparisons": len(counts),
        **_counts(verdicts),
        "pairs": fmean(counts) if counts else 0.0,
        "seconds": fmean(lengths) if lengths else 0.0,
    }


def windows(ratios: Sequence[float], tolerance: float) -> Iterator[tuple[int, int]]:
    """Where comparisons begin and where they know enough; at most 60 a process."""
    from cgtool.analysis.regression import pair_precision
    from cgtool.model.options import FEWEST_PAIRS, PAIRS_A_LOOK

    starts = range(0, len(ratios) - FEWEST_PAIRS, max(1, len(ratios) // 60))
    for start in starts:
        for end in range(start + FEWEST_PAIRS, len(ratios) + 1, PAIRS_A_LOOK):
            some = ratios[start:end]
            if stdev(some) / len(some) ** 0.5 <= pair_precision(tolerance):
                yield start, end
                break
        else:
            return


def _counts(verdicts: Counter[str]) -> dict[str, int]:
    return {
        "slower": verdicts["slower"],
        "not slower": verdicts["not-slower"],
        "cannot tell": verdicts["cannot-tell"],
    }


def show(found: dict[str, Any]) -> None:
    for title, rows in found.items():
        print(f"\n{title}")
        if rows:
            print("  ".join(f"{key:>11}" for key in rows[0]))
        for row in rows:
            print("  ".join(f"{_text(value):>11}" for value in row.values()))


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3%}" if abs(value) < 0.2 else f"{value:.3g}"
    return str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--judge", type=Path, metavar="RAW", help="judge saved rounds")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument(
        "--pair-seconds", type=float, default=PAIR_SECONDS, help="a sample, a process"
    )
    parser.add_argument("--worker", nargs=2, metavar=("N", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--calibrate", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.calibrate:
        asked.calibrate.write_text(json.dumps(calibrate()))
        return
    if asked.worker:
        place = Path(asked.worker[1])
        task = json.loads((place / "task").read_text())
        number = int(asked.worker[0])
        worker(number, task, place / f"{number}.json", place / "lock")
        return
    if asked.judge is None:
        raw = measure(asked.workers, asked.pair_seconds)
        (asked.out / "time-gate.json").write_text(json.dumps(raw))
    else:
        raw = json.loads(asked.judge.read_text())
    found = judge(raw)
    show(found)
    (asked.out / "time-gate-figures.json").write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
