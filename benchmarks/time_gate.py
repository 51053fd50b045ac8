"""How far the three answers on times can be trusted: false alarms, slowdowns found, and the cost.

    python benchmarks/time_gate.py                        measures on a GPU (8 minutes), then judges
    python benchmarks/time_gate.py --judge time-gate.json judges again, without a GPU
    python benchmarks/time_gate.py --simulate             judges runs that are made up: error rates

Separate processes: each worker captures one sample, as it is or with an extra kernel that makes a
replay 3% longer, and measures it. A comparison draws workers for the baseline, 10 or as many as
their noise takes, and others for the change, all of one GPU, and looks after 3, 6, 11 and 20 of
these, as `cgtool gate --baseline` does. There are far more comparisons than workers: they share
runs. Every GPU of the machine is used, each by itself.

Interleaved: in one process the sample, the sample once more, and the sample with a kernel that is
0.5% of a replay longer, captured and timed in turn, as `cgtool bench --against` does. A
comparison is a window of consecutive pairs; windows overlap.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from time_gate_measure import (
    INTERLEAVED,
    PAIR_SECONDS,
    SAMPLES,
    SEPARATE,
    WORKERS,
    calibrate,
    measure,
    worker,
)
from time_gate_simulate import COMPARISONS as SIMULATED
from time_gate_simulate import Runs, baseline, counts, missed, simulate

from cgtool.analysis.timing.regression import (
    CANNOT_TELL,
    PAIR_TOLERANCE,
    TOLERANCE,
    judge_pairs,
    judge_runs,
    pair_precision,
    planned_looks,
)
from cgtool.analysis.timing.stats import midmean
from cgtool.model.options import FEWEST_PAIRS, FIRST_RUNS, MAX_RUNS, PAIRS_A_LOOK

COMPARISONS = 300
"""For each sample, of the same code and of the slower one."""


def judge(raw: dict[str, Any]) -> dict[str, Any]:
    """The figures, from the raw rounds alone."""
    figures: dict[str, Any] = {"spread": [], "separate": [], "interleaved": []}
    for name in raw["cycles"]:
        figures["spread"].append(spread(name, raw))
        for side in ("base", "head"):
            figures["separate"].append(separate(name, side, raw))
        for side in ("again", "head") if raw["interleaved"] else ():
            figures["interleaved"].append(interleaved(name, side, raw))
    return figures


def runs_of(name: str, side: str, raw: dict[str, Any]) -> dict[str, Runs]:
    """The rounds of each worker that measured this, by GPU."""
    by_gpu: dict[str, Runs] = {}
    for result in raw["separate"]:
        if side in result["samples"].get(name, ()):
            by_gpu.setdefault(result.get("gpu", ""), []).append(result["samples"][name][side])
    return by_gpu


def spread(name: str, raw: dict[str, Any]) -> dict[str, Any]:
    """Relative standard deviations: of the rounds of a run, of the runs on one GPU, and of GPUs."""
    gpus = list(runs_of(name, "base", raw).values())
    middles = [[median(rounds) for rounds in runs] for runs in gpus]
    means = [fmean(middle) for middle in middles]
    everything = fmean(means)
    return {
        "sample": name,
        "replay_us": everything / 1e3,
        "workers": sum(map(len, gpus)),
        "rounds": median(stdev(rounds) for runs in gpus for rounds in runs) / everything,
        "runs": fmean(stdev(middle) for middle in middles) / everything,
        "gpus": stdev(means) / everything if len(means) > 1 else 0.0,
    }


def separate(name: str, side: str, raw: dict[str, Any]) -> dict[str, Any]:
    """Random baselines against other workers of the same or the slower code, all of one GPU."""

    bases, heads = runs_of(name, "base", raw), runs_of(name, side, raw)
    gpus = sorted(bases)
    draw = random.Random(f"{name} {side}")
    looks = planned_looks(FIRST_RUNS, MAX_RUNS)
    verdicts: Counter[str] = Counter()
    runs, bases_made = [], []
    for number in range(COMPARISONS):
        base, head = bases[gpus[number % len(gpus)]], heads[gpus[number % len(gpus)]]
        chosen = draw.sample(base, len(base))
        before = baseline(chosen)
        after = chosen[len(before) :] if side == "base" else draw.sample(head, len(head))
        for look in looks:
            if look > len(after):
                # What it would have said is not known.
                break
            answer = judge_runs(before, after[:look], TOLERANCE, looks=len(looks))
            run_count = look
            if answer.verdict != CANNOT_TELL:
                break
        verdicts[answer.verdict] += 1
        bases_made.append(len(before))
        runs.append(run_count)
    changes = [
        fmean(map(midmean, heads[gpu])) / fmean(map(midmean, bases[gpu])) - 1 for gpu in gpus
    ]
    return {
        "sample": name,
        "planted": SEPARATE if side == "head" else 0.0,
        "seen": fmean(changes) if side == "head" else 0.0,
        "workers": sum(map(len, bases.values())) + sum(map(len, heads.values())) * (side == "head"),
        "comparisons": COMPARISONS,
        **counts(verdicts),
        "baseline": fmean(bases_made),
        "runs": fmean(runs),
        "seconds": fmean(runs) * raw["run_seconds"],
    }


def interleaved(name: str, side: str, raw: dict[str, Any]) -> dict[str, Any]:
    """Windows of consecutive pairs, each as long as ``cgtool bench --against`` would go on."""

    verdicts: Counter[str] = Counter()
    pairs, apart, lengths = [], [], []
    for result in raw["interleaved"]:
        base, head = result["samples"][name]["base"], result["samples"][name][side]
        each = result["samples"][name]["seconds"] / len(base) * 2 / 3
        ratios = [median(b) / median(a) - 1 for a, b in zip(base, head, strict=True)]
        apart += ratios
        for start, end in windows(ratios, PAIR_TOLERANCE):
            answer = judge_pairs(base[start:end], head[start:end], PAIR_TOLERANCE)
            verdicts[answer.verdict] += 1
            pairs.append(end - start)
            lengths.append((end - start) * each)
    return {
        "sample": name,
        "planted": INTERLEAVED if side == "head" else 0.0,
        "seen": fmean(apart),
        "pair_sd": stdev(apart),
        "measured": len(apart),
        "comparisons": len(pairs),
        **counts(verdicts),
        "pairs": fmean(pairs) if pairs else 0.0,
        "seconds": fmean(lengths) if lengths else 0.0,
    }


def windows(ratios: Sequence[float], tolerance: float) -> Iterator[tuple[int, int]]:
    """Where comparisons begin and where they know enough; at most 60 a process."""

    starts = range(0, len(ratios) - FEWEST_PAIRS, max(1, len(ratios) // 60))
    for start in starts:
        for end in range(start + FEWEST_PAIRS, len(ratios) + 1, PAIRS_A_LOOK):
            window = ratios[start:end]
            if stdev(window) / len(window) ** 0.5 <= pair_precision(tolerance):
                yield start, end
                break
        else:
            return


def show(figures: dict[str, Any]) -> None:
    for title, rows in figures.items():
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
    parser.add_argument("--simulate", action="store_true", help="judge runs that are made up")
    parser.add_argument(
        "--comparisons", type=int, default=SIMULATED, help="of each case, simulated"
    )
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument(
        "--workers", type=int, default=WORKERS, help="for each sample and side, on each GPU"
    )
    parser.add_argument(
        "--pair-seconds", type=float, default=PAIR_SECONDS, help="a sample, a process; 0: no pairs"
    )
    parser.add_argument("--sample", action="append", choices=SAMPLES, help="repeatable")
    parser.add_argument("--worker", nargs=2, metavar=("N", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--lock", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--calibrate", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.calibrate:
        arguments.calibrate.write_text(json.dumps(calibrate()))
        return
    if arguments.worker:
        place = Path(arguments.worker[1])
        task = json.loads((place / "task").read_text())
        number = int(arguments.worker[0])
        worker(number, task, place / f"{number}.json", arguments.lock)
        return
    if arguments.simulate:
        judgment = simulate(arguments.comparisons)
        show(judgment)
        if sentences := missed(judgment, arguments.comparisons):
            print(*sentences, sep="\n")
            raise SystemExit(3)
        return
    if arguments.judge is None:
        names = arguments.sample or SAMPLES
        raw = measure(
            names, arguments.workers, arguments.pair_seconds, arguments.out / "time-gate.json"
        )
    else:
        raw = json.loads(arguments.judge.read_text())
    judgment = judge(raw)
    show(judgment)
    (arguments.out / "time-gate-figures.json").write_text(json.dumps(judgment, indent=2))


if __name__ == "__main__":
    main()
