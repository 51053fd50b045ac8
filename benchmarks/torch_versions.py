"""Does cgtool work without a GPU on every supported PyTorch?

    python benchmarks/torch_versions.py 2.8.0 2.11.0 2.13.0 2.15.0

Each version is installed in a temporary environment, one after the other (default wheels, about 5.5
GB each), or is that of an interpreter: ``2.13.0=.venv/bin/python``. Each runs, on the simulated
device, `capture` of all samples, both examples of all pages of findings, and the tests. Prints a
table, and below it what failed.
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
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TESTS = {
    "examples of pages": ("tests/findings/test_pages.py",),
    "tests": (
        "tests/simulated", "tests/verify", "tests/program", "tests/observe", "tests/torch_compat",
        "tests/detectors", "tests/worker",
    ),
}  # fmt: skip
NO_GPU = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}


class Outcome(NamedTuple):
    """How many of a kind ran through, of how many; tests that were skipped do not count."""

    passed: int
    total: int
    failed: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.passed} of {self.total}"


@contextmanager
def interpreter(version: str) -> Iterator[str]:
    """A Python with this PyTorch: of ``VERSION=PYTHON``, or of an environment that is removed."""
    _, given, python = version.partition("=")
    if given:
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


def samples(python: str, folder: Path) -> Outcome:
    failed = []
    files = sorted((ROOT / "samples").glob("*.py"))
    for file in files:
        command = [python, "-m", "cgtool.cli.app", "capture", f"{file}:build", "-q"]
        command += ["-o", str(folder / "sample.cgt"), "--device", "simulated"]
        done = _run(command)
        if done.returncode:
            failed.append(f"{file.name}: {done.stderr.strip().partition(chr(10))[0]}")
    return Outcome(len(files) - len(failed), len(files), tuple(failed))


def tests(python: str, folder: Path, paths: tuple[str, ...]) -> Outcome:
    report = folder / "tests.xml"
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    _run([*command, *paths])
    cases = [case for case in ET.parse(report).iter("testcase") if case.find("skipped") is None]
    failed = tuple(
        f"{case.get('classname')}::{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    )
    return Outcome(len(cases) - len(failed), len(cases), failed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="+", metavar="VERSION[=PYTHON]")
    columns = ("samples", *TESTS)
    parser.add_argument("--only", nargs="+", choices=columns, default=columns)
    arguments = parser.parse_args()
    failures: list[str] = []
    print("| torch |", *(f"{column} |" for column in arguments.only))
    print("|---" * (1 + len(arguments.only)) + "|")
    for version in arguments.versions:
        with interpreter(version) as python, tempfile.TemporaryDirectory() as folder:
            outcomes = [
                tests(python, Path(folder), TESTS[column])
                if column in TESTS
                else samples(python, Path(folder))
                for column in arguments.only
            ]
            name = subprocess.check_output(
                [python, "-c", "import torch; print(torch.__version__)"], text=True
            ).strip()
        print(f"| {name} | {' | '.join(map(str, outcomes))} |", flush=True)
        failures += [f"{name}  {failed}" for outcome in outcomes for failed in outcome.failed]
    print("", *failures, sep="\n")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
