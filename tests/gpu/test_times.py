"""Times of nodes: every one where the order of records is certain."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cgtool.model.capture_file import read

pytestmark = pytest.mark.gpu
SAMPLES = Path(__file__).resolve().parent.parent.parent / "samples"


def cgtool(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "cgtool.cli.app", *map(str, arguments)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("sample", ["mlp", "train_step", "convnet"])
def test_every_node_of_a_sample_is_timed(sample, tmp_path):
    target = tmp_path / "out.cgt"
    cgtool("capture", f"{SAMPLES / sample}.py:build", "--times", "-o", target)
    for graph in read(target).graphs:
        times = [node.duration_ns for node in graph.nodes]
        assert None not in times, [node.type for node in graph.nodes if node.duration_ns is None]
        assert all(100 < time < 10_000_000 for time in times)
    cgtool("dump", target, "--dot", "--color", "time", "-o", tmp_path / "out.dot")


def test_without_cupti_python_a_kernel_on_two_branches_keeps_no_time(tmp_path, monkeypatch):
    (tmp_path / "cupti.py").write_text("raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    target = tmp_path / "out.cgt"
    cgtool("capture", f"{SAMPLES / 'two_streams'}.py:build", "--times", "-o", target)
    capture = read(target)
    untimed = [node for node in capture.graphs[0].nodes if node.duration_ns is None]
    assert untimed
    assert any(
        caveat.code == "untimed" and str(len(untimed)) in caveat.text for caveat in capture.caveats
    )
    assert any("cgtool[cupti]" in caveat.text for caveat in capture.caveats)
