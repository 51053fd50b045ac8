"""`cgtool debug` finds the one mistake of a program: on the simulated device, and on a GPU."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import missing_edges, planted_nans
from tests.forked_workers import run_cgtool

DEVICES = ["simulated", pytest.param("cuda", marks=pytest.mark.gpu)]
PLACE = re.compile(r" at \S*?missing_edges\.py:(\d+)")


def debug(device: str, programs: Path, name: str, *options: str) -> tuple[int, list[dict]]:
    command = ["debug", f"{programs}:{name}", *options]
    command += ["--device", device, "--replays", "1", "--format", "json"]
    if device == "simulated":
        done = run_cgtool(*command, cwd=programs.parent, timeout=300)
    else:
        command = [sys.executable, "-m", "cgtool", *command]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert "findings" in report, report
    return done.returncode, report["findings"]


def marked(programs: Path, name: str, mark: str) -> int:
    """The line of a program that ends with a mark."""
    lines = programs.read_text().splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith(f"def {name}("))
    return next(at + 1 for at in range(start, len(lines)) if lines[at].endswith(f"# {mark}"))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", missing_edges.ENTRIES)
def test_the_missing_edge_is_found(name: str, device: str) -> None:
    programs = Path(missing_edges.__file__)
    code, findings = debug(device, programs, name, "--orders", "20")
    assert [each["code"] for each in findings] == ["stream-race-in-capture"], findings
    (finding,) = findings
    first = PLACE.search(finding["reason"])
    assert first is not None, finding
    lines = int(first[1]), finding["line"]
    assert lines == tuple(marked(programs, name, mark) for mark in ("first", "second")), finding
    assert code == 1
    assert debug(device, programs, f"{name}_right", "--orders", "20") == (0, [])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", planted_nans.ENTRIES)
def test_the_first_nan_is_found(name: str, device: str) -> None:
    programs = Path(planted_nans.__file__)
    code, findings = debug(device, programs, name)
    assert [each["code"] for each in findings] == ["first-nan"], findings
    assert findings[0]["line"] == marked(programs, name, "NaN"), findings
    assert code == 1
    assert debug(device, programs, f"{name}_healthy") == (0, [])
