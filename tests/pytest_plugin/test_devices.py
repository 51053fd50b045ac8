"""Where there is no GPU: counts are still exact, and whatever is not judged is reported."""

from __future__ import annotations

import pytest
import torch

from cgtool.analysis.gate.verdict import UNKNOWN, Verdict
from cgtool.pytest_plugin.gate import Gate
from tests.pytest_plugin.projects import run, write

pytest_plugins = ["pytester"]


def test_what_needs_a_gpu_is_not_judged_and_the_summary_says_so(pytester):
    write(
        pytester,
        """
def test_counts_and_times(cudagraph):
    cudagraph("model.py:build").gate(max_nodes=5, min_speedup=1.5, baseline=False)

def test_times_alone(cudagraph):
    cudagraph("model.py:build").gate(min_speedup=1.5, baseline=False)

def test_kernels(cudagraph):
    assert cudagraph("model.py:build").kernels <= 400
""",
    )
    result = run(pytester, "-rs")
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(
        [
            "cudagraph: 1 gated (1 on the simulated device)",
            "speedup not judged in 2 tests: the simulated device has no kernels and no GPU times",
            "SKIPPED*tests/test_model.py:7: nothing could be judged: speedup: the simulated*",
            "SKIPPED*tests/test_model.py:10: model.py:build has no kernels here: *",
        ],
    )


def test_a_phase_that_is_not_there_fails_and_is_not_excused(pytester):
    write(
        pytester,
        """
def test_step(cudagraph):
    cudagraph("model.py:build", backward=False).gate(max_nodes={"backward": 9}, baseline=False)
""",
    )
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*AssertionError: model.py:build: cannot tell: 1 of 1 figure*"])


def test_requires_gpu_skips_before_the_test_with_the_reason(pytester):
    tests = """
@pytest.mark.cudagraph(requires_gpu=True)
def test_step(cudagraph):
    assert not cudagraph("model.py:build").simulated
"""
    write(pytester, tests)
    result = run(pytester, "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(
        ["SKIPPED*test_model.py:*: requires a GPU: --cudagraph-device simulated was given"]
    )
    result = run(pytester, "-rs", device=None)
    if torch.cuda.is_available():
        result.assert_outcomes(passed=1)
        return
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*test_model.py:*: requires a GPU: PyTorch *"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_requiring_a_gpu_fails_without_one(pytester):
    write(
        pytester,
        """
@pytest.mark.cudagraph(requires_gpu=True)
def test_step(cudagraph):
    cudagraph("model.py:build")
""",
    )
    result = run(pytester, device="cuda")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*Failed: device cuda: PyTorch *"])


def test_an_unknown_device_is_refused_at_once(pytester):
    result = run(pytester, device="tpu")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*'tpu': expected cuda, cuda:N or simulated*"])


@pytest.mark.parametrize(
    ("verdict", "simulated", "times", "excused"),
    [
        (Verdict("speedup", "x", UNKNOWN, "at least 2", "", measured=1.99), False, True, True),
        (Verdict("replay-us", "us", UNKNOWN, "baseline", "", measured=3.0), False, True, True),
        (Verdict("replay-us", "us", UNKNOWN, "baseline", ""), False, True, False),
        (Verdict("replay-us", "us", UNKNOWN, "baseline", ""), False, False, True),
        (Verdict("kernels", "", UNKNOWN, "at most 4", ""), True, True, True),
        (Verdict("kernels.backward", "", UNKNOWN, "at most 4", ""), False, True, False),
        (Verdict("mismatches", "", UNKNOWN, "at most 0", ""), True, True, False),
        (Verdict("baseline", "", UNKNOWN, "baseline", ""), True, True, False),
    ],
)
def test_only_what_this_machine_cannot_measure_is_excused(
    request, verdict, simulated, times, excused
):
    from cgtool.pytest_plugin.workers import NamedEntry

    class Workers:
        entry = NamedEntry("model.py:build", "model.py:build")

    workers = Workers()
    workers.times = times
    gate = Gate(request.node, 1, workers, simulated)
    assert gate._is_excused(verdict) is excused
