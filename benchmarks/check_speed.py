"""How long `cgtool check` takes: `python benchmarks/check_speed.py [SAMPLE ...]`.

Beside it, in the same run: the start-up of a process that imports PyTorch and loads the sample, and
one eager iteration of it under the op recorder. The limit is three times the sum of the two.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = sorted(path.stem for path in (ROOT / "samples").glob("*.py"))
ROUNDS = 3

# Prints the seconds of the recorded iteration; the rest of the process is start-up.
RECORD = """
import sys, time, torch
from cgtool.program.load import load
from cgtool.program.phases import WorkloadRun, roots_of
from cgtool.model.options import CaptureOptions
from cgtool.observe.annotations import watch
from cgtool.observe.ops import OpRecorder
def run(spec, device):
    workload = load(spec, device=device)
    session = WorkloadRun(workload, CaptureOptions())
    def iteration():
        for phase in session.phases():
            phase.result = phase.work()
    iteration()
    with watch() as ranges:
        started = time.perf_counter()
        with OpRecorder(roots_of(workload), ranges):
            iteration()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        print(time.perf_counter() - started)
if torch.cuda.is_available():
    run(sys.argv[1], "cuda")
else:
    from cgtool.devices.simulated.device import SimulatedDevice
    with SimulatedDevice("").active():
        run(sys.argv[1], "cuda")
"""


def timed(command: list[str]) -> tuple[float, str]:
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command[-2:])}: {done.stdout[-800:]}{done.stderr[-800:]}")
    return time.perf_counter() - started, done.stdout


def main() -> None:
    worst = 0.0
    for sample in sys.argv[1:] or SAMPLES:
        spec = f"samples/{sample}.py:build"
        whole, records, checks = [], [], []
        for _ in range(ROUNDS):
            seconds, said = timed([sys.executable, "-c", RECORD, spec])
            whole.append(seconds)
            records.append(float(said.split()[-1]))
            checks.append(timed([sys.executable, "-m", "cgtool.cli.app", "check", spec])[0])
        base = median(whole)
        ratio = median(checks) / base
        worst = max(worst, ratio)
        print(
            f"{sample:16} start-up and record {base:.2f} s (record {median(records):.3f}), "
            f"check {median(checks):.2f} s, ratio {ratio:.2f}",
            flush=True,
        )
    print(f"largest ratio {worst:.2f} (limit 3)")
    if worst > 3:
        sys.exit(1)


if __name__ == "__main__":
    main()
