"""`cgtool --help` against `python -c pass`: what it costs to start. Medians of many runs.

The aim: at most 120 ms where `python -c pass` takes 15. Prints both and their difference.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

RUNS = 25


def time_of(command: list[str]) -> float:
    """Wall milliseconds of one run, output thrown away."""
    clock = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return (time.perf_counter() - clock) * 1e3


def main() -> None:
    cgtool = str(Path(sys.executable).parent / "cgtool")
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "cgtool --help": [cgtool, "--help"],
        "cgtool dump --help": [cgtool, "dump", "--help"],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(RUNS):
        for name, command in commands.items():
            times[name].append(time_of(command))
    base = median(times["python -c pass"])
    for name, values in times.items():
        print(f"{name:<20}{median(values):7.1f} ms  {median(values) / base:5.1f} times pass")


if __name__ == "__main__":
    main()
