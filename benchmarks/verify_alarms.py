"""How often does `verify` alarm without a cause? `python benchmarks/verify_alarms.py [NAME...]`.

Runs `verify` with `--runs` seeds over each model of `model_zoo.py`, which are all right to replay:
an exit code of 1 is a false alarm, and 5 means that it cannot tell. The workers are forked from a
process that has imported the models' packages; what they do after that is the command's. A model
that does not capture (exit code 4) is counted apart. Exit code 1 if there was an alarm.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from cgtool.analysis.reports import exit_code  # noqa: E402
from cgtool.cli.attempts import report_of  # noqa: E402
from cgtool.model.failure import CgtoolError  # noqa: E402
from cgtool.model.jobs import VerifyJob  # noqa: E402
from cgtool.model.options import CaptureOptions  # noqa: E402
from tests.forked_workers import in_fork, preload  # noqa: E402

SECONDS = 300
IMPORTED = {
    "transformers": "transformers.modeling_utils",
    "timm": "timm",
    "torchvision": "torchvision.models",
    "torch_geometric": "torch_geometric.nn",
}


def verify(name: str, seed: int, device: str | None) -> tuple[int, str, dict[str, int]]:
    """Exit code, why it is not 0, and how many comparisons were exact and judged."""
    for descriptor in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    options = CaptureOptions(device=device, seed=seed)
    job = VerifyJob(f"{HERE / 'model_zoo.py'}:{name}", options)
    try:
        report = report_of(job, timeout=SECONDS, quiet=True)
    except CgtoolError as error:
        return error.failure.exit_code, error.failure.what, {}
    counts = Counter("exact" if each.exact else "judged" for each in report.comparisons)
    notes = [f"{note.code}: {note.text}" for note in report.notes]
    reasons = [each.reason for each in report.findings] + notes
    return exit_code(report), "; ".join(reasons), dict(counts)


def main() -> int:
    from model_zoo import PACKAGES

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--runs", type=int, default=10, help="of each model")
    parser.add_argument("--device")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--save", type=Path, help="one JSON line for each run")
    options = parser.parse_args()
    installed = {package for package in PACKAGES if importlib.util.find_spec(package)}
    names = [
        name
        for package in sorted(installed)
        for name in PACKAGES[package]
        if not options.names or name in options.names or package in options.names
    ]
    preload("tests.corpus.preloaded", *(IMPORTED[package] for package in sorted(installed)))
    rows: dict[str, list[tuple[int, str, dict[str, int]]]] = defaultdict(list)
    start = time.monotonic()
    with (
        ThreadPoolExecutor(options.jobs) as pool,
        Path(options.save or os.devnull).open("w") as file,
    ):
        jobs = {
            pool.submit(in_fork, verify, name, seed, options.device, timeout=SECONDS): (name, seed)
            for seed in range(options.runs)
            for name in names
        }
        for job in as_completed(jobs):
            name, seed = jobs[job]
            try:
                answer = job.result()
            except (RuntimeError, TimeoutError) as error:
                answer = (70, str(error)[-300:], {})
            rows[name].append(answer)
            print(json.dumps([name, seed, *answer]), file=file, flush=True)
    print(f"{'model':22}{'runs':>6}{'equal':>7}{'differ':>8}{'cannot tell':>13}{'refused':>9}")
    codes: Counter[int] = Counter()
    for name in names:
        each = Counter(code for code, _why, _counts in rows[name])
        codes += each
        shown = f"{len(rows[name]):6}{each[0]:7}{each[1]:8}{each[5]:13}{each[4]:9}"
        print(f"{name:22}{shown}")
        for why in sorted({why for code, why, _counts in rows[name] if code not in (0, 4)}):
            print(f"    {why[:300]}")
    print(
        f"{codes.total()} runs in {time.monotonic() - start:.0f} s: {codes[0]} equal, {codes[1]} "
        f"differ, {codes[5]} cannot tell, {codes[4]} refused"
    )
    return int(bool(codes.total() - codes[0] - codes[4] - codes[5]))


if __name__ == "__main__":
    sys.exit(main())
