"""Beside other tests: pytest-xdist, taking turns on the GPU, and no cost where nothing is used."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import tempfile

import pytest

from cgtool.pytest_plugin import workers
from tests.pytest_plugin.projects import run, write

pytest_plugins = ["pytester"]


def test_under_xdist_all_baselines_are_written_and_all_counted(pytester):
    write(
        pytester,
        """
@pytest.mark.parametrize("case", range(3))
def test_step(cudagraph, case):
    cudagraph("model.py:build").gate(max_nodes=5, min_speedup=1)
""",
    )
    result = run(pytester, "-n", "2", "--cudagraph-update")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        [
            "cudagraph: 3 gated (3 on the simulated device), 3 baselines written",
            "speedup not judged in 3 tests: the simulated device *",
        ]
    )
    files = sorted(pytester.path.glob("tests/__cudagraphs__/test_model/*"))
    assert [file.name for file in files] == [f"test_step[{n}].simulated.json" for n in range(3)]
    assert {json.loads(file.read_text())["counts"]["nodes"] for file in files} == {5}


class Taker:
    """A process that takes its turn, and holds it until it is let go."""

    def __init__(self, how):
        context = multiprocessing.get_context("fork")
        self.asks, self.is_in, self.may_go = context.Event(), context.Event(), context.Event()
        self.process = context.Process(target=self._take, args=(how,), daemon=True)
        self.process.start()
        assert self.asks.wait(60)

    def _take(self, how):
        self.asks.set()
        with how():
            self.is_in.set()
            self.may_go.wait(60)

    def go(self):
        self.may_go.set()
        self.process.join(60)
        assert self.process.exitcode == 0


def test_captures_are_together_and_whoever_measures_is_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first, second = Taker(workers.gpu_shared), Taker(workers.gpu_shared)
    assert first.is_in.wait(60) and second.is_in.wait(60)
    times = Taker(workers.gpu_alone)
    assert not times.is_in.wait(0.5)
    late = Taker(workers.gpu_shared)
    # A capture could be beside the other two; it waits, because a measurement waits before it.
    assert not late.is_in.wait(0.5)
    first.go()
    assert not times.is_in.wait(0.2)
    second.go()
    assert times.is_in.wait(60)
    assert not late.is_in.wait(0.2)
    times.go()
    assert late.is_in.wait(60)
    late.go()


def test_a_link_in_the_shared_folder_is_not_followed(monkeypatch, tmp_path):
    from cgtool.model.failure import CgtoolError

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with workers.gpu_alone():
        pass
    for lock in tmp_path.iterdir():
        lock.unlink()
        lock.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CgtoolError, match="share the GPU"), workers.gpu_shared():
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_run_that_does_not_use_it_imports_next_to_nothing():
    script = (
        "import pytest, sys; before = set(sys.modules); import cgtool.pytest_plugin; "
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "['cgtool', 'cgtool.pytest_plugin']"


def test_a_run_that_does_not_use_it_says_nothing_and_can_leave_it_out(pytester):
    pytester.makepyfile("def test_one(): ...")
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*cudagraph*")
    result = pytester.runpytest_subprocess("-p", "no:cgtool", "--fixtures")
    result.stdout.no_fnmatch_line("*cudagraph*")
    result = pytester.runpytest_subprocess("--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.cudagraph(max_nodes=400*"])
