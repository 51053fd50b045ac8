"""Times in a test: a recording from an H200 replaces what a worker would measure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cgtool.cli import workers
from cgtool.worker import supervisor
from tests.pytest_plugin.projects import run as run_pytest

pytest_plugins = ["pytester"]

CAPTURE = Path(__file__).resolve().parents[2] / "samples" / "captures" / "mlp-bench.cgt"
FILE = "tests/__cudagraphs__/test_model/test_step.json"
WORKERS = f"""
import contextlib
import itertools
import json
import os
from pathlib import Path

from msgspec.structs import replace

from cgtool.cli import workers
from cgtool.model.capture_file import read
from cgtool.model.jobs import BenchJob
from cgtool.worker import supervisor

RECORDED = read(Path({str(CAPTURE)!r}))
RUNS = itertools.count()


def attempt(job, output, _options):
    # Runs differ by a thousandth.
    factor = float(os.environ.get("SLOWER", "1")) * (1 + 0.001 * (next(RUNS) % 3))
    samples = [
        replace(one, device_ns=tuple(t * (factor if one.name == "replay" else 1)
                                     for t in one.device_ns))
        for one in RECORDED.bench.samples
    ]
    return replace(
        RECORDED,
        entry=replace(RECORDED.entry, spec=job.spec),
        environment=replace(
            RECORDED.environment, driver=os.environ.get("DRIVER", RECORDED.environment.driver)
        ),
        bench=replace(RECORDED.bench, samples=tuple(samples))
        if isinstance(job, BenchJob)
        else None,
    )


workers.capture_of = attempt
# Nothing would run in the processes that import torch ahead of their runs.
supervisor.ahead = contextlib.nullcontext
"""


@pytest.fixture
def gpu(pytester, monkeypatch):
    """Run tests of a project on the recorded GPU."""
    pytester.makeini("[pytest]")
    pytester.makeconftest(WORKERS)
    pytester.path.joinpath("model.py").write_text("def build(device): ...\n")
    pytester.path.joinpath("tests").mkdir()
    # What the conftest.py replaces is restored.
    monkeypatch.setattr(workers, "capture_of", workers.capture_of)
    monkeypatch.setattr(supervisor, "ahead", supervisor.ahead)

    def run(gate, *arguments, **environment):
        text = f"def test_step(cudagraph):\n    cudagraph('model.py:build').gate({gate})\n"
        pytester.path.joinpath("tests", "test_model.py").write_text(text)
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            return run_pytest(pytester, "-rs", *arguments, device=None)

    return run


def test_a_baseline_holds_the_times_of_ten_runs_and_a_slower_replay_fails(pytester, gpu):
    gpu("max_regression='3%'", "--cudagraph-update").assert_outcomes(passed=1)
    kept = json.loads((pytester.path / FILE).read_text())
    assert {sample.get("run", 0) for sample in kept["samples"]} == set(range(10))
    assert kept["counts"]["kernels"] > 0

    result = gpu("max_regression='3%'")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["cudagraph: 1 gated"])

    result = gpu("max_regression='3%'", SLOWER="1.05")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E*AssertionError: model.py:build: failed: 1 of * figures: replay-us *, baseline *"]
    )


def test_times_of_another_machine_are_not_judged_and_counts_are(pytester, gpu):
    gpu("max_regression='3%'", "--cudagraph-update").assert_outcomes(passed=1)
    result = gpu("max_regression='3%'", DRIVER="999.1", SLOWER="2")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["cudagraph: 1 gated", "replay-us not judged in 1 test: different driver: * 999.1 here"]
    )


def test_without_times_a_baseline_that_has_them_still_holds_counts(pytester, gpu):
    gpu("max_regression='3%'", "--cudagraph-update").assert_outcomes(passed=1)
    result = gpu("max_regression='3%'", "--cudagraph-no-times", SLOWER="2")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["replay-us not judged in 1 test: --cudagraph-no-times was given"])


def test_a_baseline_without_the_requested_times_fails(pytester, gpu):
    gpu("", "--cudagraph-update").assert_outcomes(passed=1)
    assert "samples" not in json.loads((pytester.path / FILE).read_text())
    gpu("").assert_outcomes(passed=1)
    result = gpu("max_regression='3%'")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*cannot tell: 1 of * figures: replay-us *", "E*baseline does*"])


def test_a_time_too_near_its_limit_is_undecided_and_does_not_fail(gpu):
    speedup = 7.48
    result = gpu(f"min_speedup={speedup}, baseline=False, max_runs=1")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*: nothing could be judged: speedup: *"])
    gpu("min_speedup=2, baseline=False").assert_outcomes(passed=1)
    gpu("min_speedup=20, baseline=False").assert_outcomes(failed=1)
