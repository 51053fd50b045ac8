"""Stepped = replayed: `python benchmarks/stepping.py [NAME...]` on a GPU.

Every model of model_zoo.py is captured, replayed, and run again from the same state node by node,
with and without a look at the values. Outputs, gradients and state must have the same bits, unless
two replays differ. With `--debug`, `cgtool debug --against eager --orders 10` must find nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent))

from cgtool.model.failure import EXIT_USER_CODE, CgtoolError  # noqa: E402


def compared(spec: str) -> dict[str, object]:
    """One entry, in this process."""
    import torch

    from cgtool.devices.device import quiet
    from cgtool.jobs.debug import step_with_values
    from cgtool.jobs.dispatch import JobContext, open_device
    from cgtool.jobs.verify.evidence import Trial
    from cgtool.jobs.verify.runner import TrialRunner, results_of
    from cgtool.jobs.verify.state import Snapshot, state_of
    from cgtool.model.options import CaptureOptions
    from cgtool.observe.raw_tensors import copies, unchanged

    options = CaptureOptions(device="cuda")
    context = JobContext(open_device(options.device), quiet)
    workload = context.load_spec(spec, options)
    target = context.device.verify_target(workload, options)
    target.follows_memory = True
    target.warm_up(quiet)
    start = Snapshot(workload, target.device)
    target.capture(quiet)
    runner, trial = TrialRunner(target, start), Trial("one")

    def left() -> dict[object, torch.Tensor]:
        now: dict[object, torch.Tensor] = {}
        now.update(results_of(target.session))
        now.update({("state", name): value for name, value in state_of(workload).items()})
        return copies(now)

    replays = []
    for _ in range(2):
        runner.begin_replay(trial)
        runner.replay_once(trial)
        replays.append(left())
    # Other random numbers, which no node that is stepped may use.
    torch.cuda.manual_seed(99)
    runner.replay_once(trial)
    torch.cuda.synchronize()
    began = time.perf_counter()
    steppers = target.steppers
    prepared = time.perf_counter() - began
    values: dict[int, object] = {}

    def step(*, looks: bool) -> tuple[float, dict[object, torch.Tensor]]:
        runner.begin_replay(trial)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for stepper in steppers:
            if looks:
                step_with_values(stepper, values)
            else:
                stepper.step()
        return time.perf_counter() - began, left()

    stepped, now = step(looks=False)
    step(looks=True)
    looked, with_values = step(looks=True)
    nodes = sum(stepper.count for stepper in steppers)

    def differing(one: dict[object, torch.Tensor], other: dict[object, torch.Tensor]) -> list[str]:
        return [str(key) for key in one if not unchanged(one[key], other[key])]

    return {
        "nodes": nodes,
        "whole": [why for stepper in steppers for why in stepper.whole.values()],
        "us to prepare": round(prepared / nodes * 1e6, 1),
        "us to step": round(stepped / nodes * 1e6, 1),
        "us with values": round(looked / nodes * 1e6, 1),
        "ops with values": len(values),
        "compared": len(now),
        "replays differ": differing(*replays),
        "stepped differs": differing(replays[0], now),
        "with values differs": differing(replays[0], with_values),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--one", help="an entry, in this process; prints JSON")
    parser.add_argument("--debug", action="store_true", help="what `cgtool debug` finds")
    parser.add_argument("--jobs", type=int, default=4)
    arguments = parser.parse_args()
    if arguments.one:
        try:
            print(json.dumps(compared(arguments.one)))
        except CgtoolError as error:
            print(error.failure.message, file=sys.stderr)
            return error.failure.exit_code
        return 0
    from model_zoo import PACKAGES

    names = arguments.names or [name for group in PACKAGES.values() for name in group]

    def row(name: str) -> tuple[str, dict[str, object] | str]:
        spec = f"{HERE / 'model_zoo.py'}:{name}"
        command = [sys.executable, __file__, "--one", spec]
        if arguments.debug:
            command = [sys.executable, "-m", "cgtool", "debug", spec, "--format", "json"]
            command += ["--against", "eager", "--orders", "10", "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if arguments.debug and done.returncode in (0, 1):
            report = json.loads(done.stdout)
            found = [(each["severity"], each["reason"]) for each in report["findings"]]
            return name, {"found": found, "s": round(report["elapsed_ns"] / 1e9, 1)}
        lines = done.stdout.strip().splitlines() or [""]
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["?"]
            refused = done.returncode == EXIT_USER_CODE
            how = "not captured" if refused else f"exit {done.returncode}"
            return name, f"{how}: {said[-1][:150]}"
        return name, json.loads(lines[-1])

    wrong = refused = failed = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for name, result in pool.map(row, names):
            print(name, result, flush=True)
            if isinstance(result, str):
                is_refused = result.startswith("not captured")
                refused, failed = refused + is_refused, failed + (not is_refused)
            elif arguments.debug:
                # A note may say that the model asks whether it is captured.
                wrong += any(severity != "note" for severity, _ in result["found"])
            else:
                differs = result["stepped differs"] or result["with values differs"]
                wrong += bool(differs) and not result["replays differ"]
    print(f"{len(names)} models: {wrong} wrong, {refused} not captured, {failed} failed")
    return int(wrong + failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
