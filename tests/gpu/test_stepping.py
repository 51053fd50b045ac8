"""Nodes that run alone, on a GPU."""

from __future__ import annotations

import json
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
