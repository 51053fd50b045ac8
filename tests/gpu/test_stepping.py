"""Nodes that run alone, on a GPU."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

STREAMS = """
import torch


def forward_on_two_streams(joined):
    def build():
        weight = torch.randn(64, 64, device="cuda")
        side = torch.cuda.Stream()

        def forward(x):
            current = torch.cuda.current_stream()
            side.wait_stream(current)
            with torch.cuda.stream(side):
                y = (x @ weight).relu()
            z = x.sin()
            if joined:
                current.wait_stream(side)
            out = z + y
            current.wait_stream(side)
            y.record_stream(current)
            return out

        return forward, (torch.randn(32, 64, device="cuda"),)

    return build


joined, not_joined = forward_on_two_streams(True), forward_on_two_streams(False)
"""


@pytest.mark.parametrize(("name", "found"), [("joined", False), ("not_joined", True)])
def test_a_missing_edge_is_shown_by_another_order(tmp_path: Path, name: str, found: bool) -> None:
    file = tmp_path / "streams.py"
    file.write_text(STREAMS)
    command = [sys.executable, "-m", "cgtool", "verify", f"{file}:{name}", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert any("other orders that the edges allow" in each for each in report["looked_at"])
    races = [each for each in report["findings"] if each["code"] == "stream-race-in-capture"]
    assert len(races) == found, done.stderr
    for race in races:
        assert file.read_text().splitlines()[race["line"] - 1].strip() == "out = z + y"
        assert "another output" in race["reason"]


FAULTS = Path(__file__).with_name("faults.py")
LINES = FAULTS.read_text().splitlines()
MARK = re.compile(r"# <-(?: replay (\d))?$")
NAMES = [
    name
    for name, mark in re.findall(r"^def (\w+)\(\):$((?:\n(?: .*)?)*)", FAULTS.read_text(), re.M)
    if "# <-" in mark
]


@pytest.mark.parametrize("command", ["debug", "capture"])
@pytest.mark.parametrize("name", NAMES)
def test_the_node_that_fails_is_named(tmp_path: Path, name: str, command: str) -> None:
    arguments = ["--format", "json"]
    arguments += ["-o", str(tmp_path / "a.cgt")] if command == "capture" else []
    done = subprocess.run(
        [sys.executable, "-m", "cgtool", command, f"{FAULTS}:{name}", *arguments],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 4, (done.stdout, done.stderr)
    report = json.loads(done.stdout)
    findings = report["findings"] if command == "debug" else report["error"]["findings"]
    found = next((each for each in findings if each["code"] == "node-faults"), None)
    assert found is not None, (report, done.stderr)
    start = LINES.index(f"def {name}():")
    line = next(at for at in range(start, len(LINES)) if MARK.search(LINES[at]))
    assert found["line"] == line + 1, (found, done.stderr)
    replay = MARK.search(LINES[line])[1] or 3
    assert f"replay {replay}" in found["reason"] or name == "compiled", found
    if name == "in_a_child_graph":
        assert "of the body of node" in found["reason"], found
