"""How often does `verify` alarm without a cause? `python benchmarks/verify_alarms.py [NAME...]`.

Runs `verify` with `--runs` seeds over each model of `model_zoo.py`, which are all right to replay:
an exit code of 1 is a false alarm, and 5 means that it cannot tell. A NAME is a model, a package,
or any ENTRY. The workers are forked from a process that has imported the models' packages, unless
one of those has initialized CUDA there; what they do after that is the command's. A model that does
not capture (exit code 4) is counted apart. Seeds come one after the other, so that after
`--max-seconds` every model has run about as often. Exit code 1 if a run differed or failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from model_zoo import PACKAGES  # noqa: E402

from cgtool.analysis.reports import exit_code  # noqa: E402
from cgtool.cli.options import WorkerOptions  # noqa: E402
from cgtool.cli.workers import report_of  # noqa: E402
from cgtool.model.failure import CgtoolError  # noqa: E402
from cgtool.model.jobs import VerifyJob  # noqa: E402
from cgtool.model.options import CaptureOptions  # noqa: E402
from cgtool.worker import supervisor  # noqa: E402
from tests.forked_workers import in_fork, preload  # noqa: E402

SECONDS = 300
"""For one run."""
IMPORTED = {
    "transformers": "transformers.modeling_utils",
    "timm": "timm",
    "torchvision": "torchvision.models",
    "torch_geometric": "torch_geometric.nn",
}
Row = tuple[int, str, dict[str, int]]
"""Exit code, why it is not 0, and how many comparisons were exact, judged and neither."""


def cuda_after_fork() -> str | None:
    """Why a process forked from this one cannot use the GPU; None if it can."""
    import torch

    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error)
    return None


def verify(spec: str, seed: int, device: str | None, is_forked: bool) -> Row:
    """One run, in a process of its own."""
    for descriptor in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    if not is_forked:
        # As the command does it: the worker is a new Python.
        supervisor.subprocess = subprocess
    options = WorkerOptions(CaptureOptions(device=device, seed=seed), SECONDS, quiet=True)
    job = VerifyJob(spec, options.capture_options)
    try:
        report = report_of(job, options)
    except CgtoolError as error:
        return error.failure.exit_code, error.failure.message, {}
    counts = Counter(
        "exact" if each.exact else "noisy" if each.error is None else "judged"
        for each in report.comparisons
    )
    notes = [f"{note.code}: {note.text}" for note in report.notes]
    differing = [f"{each.trial}: {each.name}" for each in report.comparisons if not each.equal]
    reasons = [each.reason for each in report.findings] + differing[:3] + notes
    return exit_code(report), "; ".join(reasons), dict(counts)


def specs(names: list[str], installed: set[str]) -> list[str]:
    """The ENTRYs to run: those given, and the models of the installed packages."""
    models = [
        f"{HERE / 'model_zoo.py'}:{name}"
        for package in sorted(installed)
        for name in PACKAGES[package]
        if not names or name in names or package in names
    ]
    return models + [name for name in names if ":" in name]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--runs", type=int, default=10, help="of each model")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--max-seconds", type=float, default=math.inf, help="start none after that")
    parser.add_argument("--device")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--save", type=Path, help="one JSON line for each run")
    options = parser.parse_args()
    installed = {package for package in IMPORTED if importlib.util.find_spec(package)}
    entries = specs(options.names, installed)
    # Whether there is a GPU is asked without initializing CUDA, which no fork would survive.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    # One that initializes CUDA (torch_geometric) keeps a GPU from all forks.
    models = {entry.rpartition(":")[2] for entry in entries}
    used = sorted(package for package in installed if models & {*PACKAGES[package]})
    preload("tests.corpus.preloaded", *(IMPORTED[package] for package in used))
    start = time.monotonic()
    problem = None
    if options.device != "simulated":
        problem = in_fork(cuda_after_fork, timeout=SECONDS)
    if problem is not None:
        print(f"each worker imports its packages again: a forked one has no GPU ({problem})")

    def run(spec: str, seed: int) -> Row | None:
        """None if the time was up."""
        if time.monotonic() - start > options.max_seconds:
            return None
        try:
            # The worker's own time ends first.
            arguments = spec, seed, options.device, problem is None
            row: Row = in_fork(verify, *arguments, timeout=SECONDS + 30)
        except (RuntimeError, TimeoutError, OSError) as error:
            return 70, str(error)[-300:], {}
        return row

    rows: dict[str, list[Row]] = defaultdict(list)
    with (
        ThreadPoolExecutor(options.jobs) as pool,
        Path(options.save or os.devnull).open("w") as file,
    ):
        jobs = {
            pool.submit(run, spec, seed): (spec, seed)
            for seed in range(options.first_seed, options.first_seed + options.runs)
            for spec in entries
        }
        for job in as_completed(jobs):
            spec, seed = jobs[job]
            row = job.result()
            if row is not None:
                rows[spec].append(row)
                print(json.dumps([spec.rpartition(":")[2], seed, *row]), file=file, flush=True)
    alarms = print_table(entries, rows)
    print(f"in {time.monotonic() - start:.0f} s")
    return int(bool(alarms))


COLUMNS = {"equal": 0, "differ": 1, "cannot tell": 5, "refused": 4}
"""By exit codes; all others are failures of the run itself."""


def print_table(entries: list[str], rows: dict[str, list[Row]]) -> int:
    """How many runs differed or failed."""

    def counts(some: list[Row]) -> list[int]:
        codes = Counter(code for code, _why, _counts in some)
        known = [codes[code] for code in COLUMNS.values()]
        return [len(some), *known, len(some) - sum(known)]

    heads = ("runs", *COLUMNS, "failed")
    print(f"{'model':24}" + "".join(f"{head:>13}" for head in heads))
    for spec in entries:
        shown = counts(rows[spec])
        print(f"{spec.rpartition(':')[2]:24}" + "".join(f"{count:13}" for count in shown))
        for why in sorted({why for code, why, _counts in rows[spec] if code != 0}):
            print(f"    {why[:300]}")
    every = [row for some in rows.values() for row in some]
    total = counts(every)
    print(f"{'all':24}" + "".join(f"{count:13}" for count in total))
    compared = sum((Counter(each) for _code, _why, each in every), Counter[str]())
    print(f"comparisons: {', '.join(f'{count} {kind}' for kind, count in compared.items())}")
    _runs, _equal, differ, _unknown, _refused, failed = total
    return differ + failed


if __name__ == "__main__":
    sys.exit(main())
