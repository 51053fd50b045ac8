"""Beside other tests: pytest-xdist, taking turns on the GPU, and no cost where nothing is used."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import tempfile
import time

import pytest

from cgtool.pytest_plugin import turns
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
    assert [one.name for one in files] == [f"test_step[{n}].simulated.json" for n in range(3)]
    assert {json.loads(one.read_text())["counts"]["nodes"] for one in files} == {5}


def _take(how, name, log, seconds):
    with getattr(turns, how)():
        log.append((name, "in", time.monotonic()))
        time.sleep(seconds)
        log.append((name, "out", time.monotonic()))


def taken(monkeypatch, tmp_path, *who):
    """Who was in, and out, in order; each (how, name, seconds) starts behind the one before."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    context = multiprocessing.get_context("fork")
    with context.Manager() as manager:
        log = manager.list()
        processes = []
        for how, name, seconds in who:
            process = context.Process(target=_take, args=(how, name, log, seconds))
            process.start()
            processes.append(process)
            time.sleep(0.2)
        for process in processes:
            process.join(30)
            assert process.exitcode == 0
        return [(name, what) for name, what, _ in sorted(log, key=lambda one: one[2])]


def test_captures_are_together_and_whoever_measures_is_alone(monkeypatch, tmp_path):
    order = taken(
        monkeypatch,
        tmp_path,
        ("together", "a", 1.0),
        ("together", "b", 0.4),
        ("alone", "times", 0.3),
        ("together", "late", 0.1),
    )
    # b came in while a was there; the measurement waited for both, and nobody overtook it.
    assert order == [
        ("a", "in"), ("b", "in"), ("b", "out"), ("a", "out"),
        ("times", "in"), ("times", "out"), ("late", "in"), ("late", "out"),
    ]  # fmt: skip


def test_a_link_in_the_shared_folder_is_not_followed(monkeypatch, tmp_path):
    from cgtool.model.failure import CgtoolError

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with turns.alone():
        pass
    for lock in tmp_path.iterdir():
        lock.unlink()
        lock.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CgtoolError, match="take turns"), turns.together():
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_run_that_does_not_use_it_imports_next_to_nothing():
    script = (
        "import pytest, sys; before = set(sys.modules); import cgtool.pytest_plugin; "
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "['cgtool', 'cgtool.pytest_plugin', 'cgtool.pytest_plugin.tally']"


def test_a_run_that_does_not_use_it_says_nothing_and_can_leave_it_out(pytester):
    pytester.makepyfile("def test_one(): ...")
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*cudagraph*")
    result = pytester.runpytest_subprocess("-p", "no:cgtool", "--fixtures")
    result.stdout.no_fnmatch_line("*cudagraph*")
    result = pytester.runpytest_subprocess("--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.cudagraph(max_nodes=400*"])
