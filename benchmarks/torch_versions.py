"""Does cgtool work without a GPU on every supported PyTorch?

    python benchmarks/torch_versions.py 2.8.0 2.11.0 2.13.0 2.15.0

Each version is installed in a temporary environment, one after the other (default wheels, about 5.5
GB each), or is that of an interpreter that has what the tests need: ``2.13.0=.venv/bin/python``.
Each runs, on the simulated device, `capture` or `run` of all samples, both examples of all pages of
findings, and the tests that run PyTorch.

Prints each part as it ends, with what failed, and then the table. The parts are kept in
``--keep FILE``; those that this commit has there do not run again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parent.parent
PARTS = {
    "samples": ("samples",),
    "pages": ("tests/findings/test_pages.py",),
    "tests": (
        "tests/torch_compat", "tests/observe", "tests/program", "tests/simulated",
        "tests/detectors", "tests/verify", "tests/worker", "tests/devices", "tests/corpus",
        "tests/recapture",
    ),
    "programs": (
        "tests/recorder", "tests/cuda", "tests/cli/ranks", "tests/cli/test_run.py",
        "tests/cli/test_run_hostile.py", "tests/cli/test_events.py", "tests/cli/test_debug.py",
        "tests/cli/test_steady_state.py", "tests/pytest_plugin", "tests/test_dead_addresses.py",
        "tests/test_rewritten_weights.py", "tests/test_stepped_programs.py",
    ),
}  # fmt: skip
"""By the column of the table. The other tests run no PyTorch, or are about texts and options."""
NO_GPU = os.environ | {
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(ROOT),
}


class Outcome(msgspec.Struct, frozen=True):
    """The result of one part; tests that were skipped do not count."""

    commit: str
    version: str
    """The version that was requested."""
    torch: str
    """The installed version, by `torch.__version__`."""
    part: str
    passed: int
    failed: tuple[str, ...]


@contextmanager
def interpreter(version: str, python: str) -> Iterator[str]:
    """``python``, or that of an environment with this PyTorch, which is removed."""
    if python:
        yield python
        return
    with tempfile.TemporaryDirectory(prefix="torch-") as folder:
        venv.create(folder, with_pip=True)
        python = f"{folder}/bin/python"
        install = [python, "-m", "pip", "install", "-q", "--no-cache-dir"]
        subprocess.run([*install, f"torch=={version}", f"{ROOT}[test]"], check=True)
        yield python


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, check=False, env=NO_GPU, cwd=ROOT, capture_output=True, text=True
    )


def samples(python: str, folder: str) -> tuple[int, list[str]]:
    """How many are captured, or recorded if they make graphs themselves, and why others are not."""
    passed, failed = 0, []
    for file in sorted((ROOT / "samples").glob("*.py")):
        has_entry = "def build(" in file.read_text()
        command = ["capture", "-q", "--device", "simulated"] if has_entry else ["run"]
        target = f"{file}:build" if has_entry else str(file)
        done = _run([python, "-m", "cgtool", *command, "-o", f"{folder}/sample.cgt", target])
        if done.returncode:
            failed.append(f"{file.name}: {done.stderr.strip().partition(chr(10))[0]}")
        else:
            passed += 1
    return passed, failed


def tests(python: str, path: str, folder: str, jobs: int) -> tuple[int, list[str]]:
    """How many pass, and how the others begin to fail."""
    report = Path(folder) / "tests.xml"
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", path]
    done = _run([*command, *(["-n", str(jobs)] if jobs > 1 else [])])
    if not report.exists():
        return 0, [f"{path}: pytest ended with exit code {done.returncode}: {done.stderr[-500:]}"]
    passed, failed = 0, []
    for case in ET.parse(report).iter("testcase"):
        problems = [child for child in case if child.tag in ("failure", "error")]
        if problems:
            why = (problems[0].get("message") or "").partition("\n")[0]
            failed.append(f"{case.get('classname')}::{case.get('name')}: {why[:200]}")
        elif case.find("skipped") is None:
            passed += 1
    return passed, failed


def table(outcomes: list[Outcome]) -> Iterator[str]:
    yield f"| torch | {' | '.join(PARTS)} |"
    yield "|---" * (1 + len(PARTS)) + "|"
    for version in dict.fromkeys(outcome.torch for outcome in outcomes):
        cells = [version]
        for parts in PARTS.values():
            of_column = [o for o in outcomes if o.torch == version and o.part in parts]
            passed = sum(outcome.passed for outcome in of_column)
            failed = sum(len(outcome.failed) for outcome in of_column)
            cells.append(f"{passed} of {passed + failed}" if of_column else "")
        yield f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("versions", nargs="+", metavar="VERSION[=PYTHON]")
    every = [part for parts in PARTS.values() for part in parts]
    parser.add_argument("--only", nargs="+", choices=every, default=every, metavar="PART")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="JSON lines")
    parser.add_argument("--jobs", type=int, default=1, help="tests at once")
    arguments = parser.parse_args()
    commit = _run(["git", "describe", "--always", "--dirty"]).stdout.strip()
    kept: list[Outcome] = []
    if arguments.keep and arguments.keep.exists():
        decoded = msgspec.json.Decoder(Outcome).decode_lines(arguments.keep.read_bytes())
        kept = [outcome for outcome in decoded if outcome.commit == commit]
    outcomes: list[Outcome] = []
    for wanted in arguments.versions:
        version, _, given = wanted.partition("=")
        done = [o for o in kept if o.version == version and o.part in arguments.only]
        outcomes += done
        left = [part for part in arguments.only if part not in {o.part for o in done}]
        if not left:
            continue
        with interpreter(version, given) as python, tempfile.TemporaryDirectory() as folder:
            says = _run([python, "-c", "import torch; print(torch.__version__)"])
            for part in left:
                passed, failed = (
                    samples(python, folder)
                    if part == "samples"
                    else tests(python, part, folder, arguments.jobs)
                )
                outcome = Outcome(commit, version, says.stdout.strip(), part, passed, tuple(failed))
                outcomes.append(outcome)
                print(f"{outcome.torch} {part}: {passed} of {passed + len(failed)}", flush=True)
                print(*(f"  {line}\n" for line in failed), sep="", end="", flush=True)
                if arguments.keep:
                    with arguments.keep.open("ab") as file:
                        file.write(msgspec.json.encode(outcome) + b"\n")
    print("", *table(outcomes), sep="\n")
    return any(outcome.failed for outcome in outcomes)


if __name__ == "__main__":
    sys.exit(main())
