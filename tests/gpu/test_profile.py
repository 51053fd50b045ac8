"""Every node of a replay has a time of its own, whoever else wants the profiler."""

from __future__ import annotations

import importlib.util
import itertools
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from cgtool.model.capture_file import read

pytestmark = pytest.mark.gpu
SAMPLES = Path(__file__).resolve().parent.parent.parent / "samples"
CUPTI = importlib.util.find_spec("cupti") is not None


def profiled(spec, folder, *options, code=0, before=()):
    target = folder / "out.cgt"
    done = subprocess.run(
        [*before, sys.executable, "-m", "cgtool.cli.app", "profile", str(spec), "--save",
         str(target), *options],
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return (read(target) if target.exists() else None), done


@pytest.mark.skipif(not CUPTI, reason="cupti-python is not installed")
@pytest.mark.parametrize("sample", ["transformer", "two_streams", "train_step", "gan"])
def test_every_node_is_timed_by_its_number(sample, tmp_path):
    capture, done = profiled(f"{SAMPLES / sample}.py:build", tmp_path)
    assert capture.profile.route == "cupti"
    assert "Time by line" in done.stdout
    for times in capture.profile.graphs:
        graph = capture.graphs[times.graph]
        work = [node for node in graph.nodes if node.type in ("kernel", "memcpy", "memset")]
        assert all(node.duration_ns and node.start_ns is not None for node in work)
        own = median(times.replay_ns) - median(times.empty_ns)
        busiest = max(node.duration_ns for node in work)
        assert busiest < own < 2 * sum(node.duration_ns for node in work)
        end = {node.id: node.start_ns + node.duration_ns for node in work}
        start = {node.id: node.start_ns for node in work}
        ordered = [e for e in graph.edges if e.type == 0 and {e.source, e.target} <= set(end)]
        # A tick of the device's clock is 32 ns.
        late = [e for e in ordered if start[e.target] < end[e.source] - 64]
        assert len(late) <= 0.02 * len(ordered), late
    assert capture.bench is not None
    assert capture.profile.memory_bytes_per_s > 1e9


@pytest.mark.skipif(not CUPTI, reason="cupti-python is not installed")
def test_parallel_branches_overlap(tmp_path):
    capture, _ = profiled(f"{SAMPLES / 'two_streams'}.py:build", tmp_path)
    timed = [node for node in capture.graphs[0].nodes if node.duration_ns is not None]
    spans = sorted((node.start_ns, node.start_ns + node.duration_ns) for node in timed)
    assert any(after[0] < before[1] for before, after in itertools.pairwise(spans))


PROFILED_ITSELF = """
import torch

def build(device):
    model = torch.nn.Linear(64, 64, device=device)
    x = torch.randn(8, 64, device=device)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):
        model(x)
        torch.cuda.synchronize()
    return model, (x,)
"""


def test_code_that_used_the_profiler_before_is_timed_by_order(tmp_path):
    script = tmp_path / "model.py"
    script.write_text(PROFILED_ITSELF)
    capture, _ = profiled(f"{script}:build", tmp_path)
    assert all(node.duration_ns for node in capture.graphs[0].nodes if node.type == "kernel"), (
        capture.profile.route
    )


AWKWARD = """
import torch

torch.backends.cuda.matmul.fp32_precision = "tf32"

class Masked(torch.nn.Linear):
    def forward(self, x, mask):
        return super().forward(x) * mask

def build(device):
    mask = torch.ones(1, 64, device=device).expand(8, 64)
    return Masked(64, 64, device=device), (torch.randn(8, 64, device=device), mask)
"""


def test_an_input_that_cannot_be_copied_into_and_a_precision_set_the_new_way(tmp_path):
    script = tmp_path / "model.py"
    script.write_text(AWKWARD)
    capture, _ = profiled(f"{script}:build", tmp_path)
    assert [input_copy.bytes for input_copy in capture.profile.inputs] == [8 * 64 * 4]
    assert {"float32", "tf32"} <= {peak.dtype for peak in capture.profile.peaks}


HELD = """
import ctypes, torch
from cgtool.devices.cuda import cupti

def build(device):
    torch.cuda.init()
    library = ctypes.CDLL(cupti.library_path())
    callback = cupti._Callback(lambda *arguments: None)
    held = ctypes.c_void_p()
    assert library.cuptiSubscribe(ctypes.byref(held), callback, None) == 0
    model = torch.nn.Linear(64, 64, device=device)
    model.held = (held, callback)
    return model, (torch.randn(8, 64, device=device),)
"""


def test_cupti_in_use_by_another_is_an_error_without_traceback(tmp_path):
    script = tmp_path / "model.py"
    script.write_text(HELD)
    target = tmp_path / "out.cgt"
    done = subprocess.run(
        [sys.executable, "-m", "cgtool.cli.app", "profile", f"{script}:build", "--save", target],
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 3), done.stderr
    assert "Traceback" not in done.stderr
    if done.returncode == 3:
        assert "profiler" in done.stderr
