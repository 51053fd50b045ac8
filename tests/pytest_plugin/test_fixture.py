"""The fixture ``cudagraph``: what a test can check, and how it reports what fails."""

from __future__ import annotations

import textwrap

import pytest

from cgtool.pytest_plugin.graph import named
from tests.pytest_plugin.projects import run, write

pytest_plugins = ["pytester"]


def no_frame_of_ours(result):
    return not any("pytest_plugin" in line for line in result.outlines)


def test_a_graph_has_counts_and_is_proved_and_this_process_never_imports_torch(pytester):
    write(
        pytester,
        """
def test_step(cudagraph):
    import sys
    graph = cudagraph("model.py:build")
    assert graph.nodes == graph.counts["nodes"] == 5
    assert (graph.graphs, graph.edges) == (2, 3)
    assert graph.counts["nodes.forward"] == 2
    assert graph.pool_mib >= graph.live_mib > 0
    assert graph.capture.entry.spec == graph.entry == "model.py:build"
    assert graph.simulated and graph.path.suffix == ".cgt" and graph.path.exists()
    assert repr(graph) == "<cudagraph model.py:build on the simulated device>"
    assert all(one.equal for one in graph.verify(trials=1).comparisons)
    assert graph.check().findings == ()
    report = graph.gate(max_nodes=5, max_findings=0, max_mismatches=0, baseline=False)
    assert [one.verdict for one in report.targets[0].verdicts] == ["pass"] * 3
    assert "torch" not in sys.modules
""",
    )
    # A random.py on the path of the tests is not the one that torch imports in a worker.
    (pytester.path / "tests" / "random.py").write_text("raise ImportError('the wrong random')\n")
    result = pytester.runpytest_subprocess("--cudagraph-device", "simulated")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["cudagraph: 1 gated (1 on the simulated device)"])


def test_over_a_budget_the_test_fails_with_what_there_is_most_of(pytester):
    write(
        pytester,
        """
def test_step(cudagraph):
    cudagraph("model.py:build").gate(max_nodes={"all": 3, "forward": 9}, baseline=False)
""",
    )
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            '>*cudagraph("model.py:build").gate(max_nodes=*',
            "E*AssertionError: model.py:build: failed: 1 of 2 figures: nodes 5, at most 3",
            "E*1 addmm at model.py:7",
            "E*limit from graph.gate() max_nodes all",
            "E*capture: *.cgt",
        ]
    )
    assert no_frame_of_ours(result)


def test_a_replay_that_differs_from_eager_and_values_that_would_freeze(pytester):
    write(
        pytester,
        """
def test_verify(cudagraph):
    cudagraph("model.py:counts").verify(trials=0)

def test_check(cudagraph):
    cudagraph("model.py:counts").check()

def test_allowed(cudagraph):
    report = cudagraph("model.py:counts").check(allow=["cpu-state-step-counter"])
    assert report.findings == ()

def test_no_such_code(cudagraph):
    cudagraph("model.py:build").check(allow=["cpu-state-step-count"])
""",
    )
    result = run(pytester)
    result.assert_outcomes(failed=3, passed=1)
    result.stdout.fnmatch_lines(
        [
            "E*AssertionError: model.py:counts: replay differs from eager in * comparisons",
            "E*error[[]cpu-state-step-counter]*",
            "E*--> model.py:27 in *",
            "E*output*2 of 3*differs*",
            "E*AssertionError: model.py:counts: cpu-state-step-counter",
            "E*Failed: graph.check(): unknown code 'cpu-state-step-count'; "
            "did you mean cpu-state-step-counter?",
        ]
    )
    assert no_frame_of_ours(result)


def test_a_failed_capture_names_the_users_line_and_harms_no_other_test(pytester):
    write(
        pytester,
        """
def test_reads(cudagraph):
    cudagraph("model.py:reads")

def test_refused(cudagraph):
    with pytest.raises(AssertionError, match="sync-item"):
        cudagraph("model.py:reads")

def test_after(cudagraph):
    assert cudagraph("model.py:build").nodes == 5
""",
    )
    result = run(pytester)
    result.assert_outcomes(failed=1, passed=2)
    result.stdout.fnmatch_lines(
        [
            "E*AssertionError: reading a tensor value on the host*",
            "E*at *model.py:17 in *",
            "E*return x [*] x.sum().item()",
            "E*code: sync-item (cgtool explain sync-item)",
        ]
    )
    assert no_frame_of_ours(result)


@pytest.mark.parametrize("how", ["--capture=sys", "--capture=fd"])
def test_what_the_code_prints_is_in_the_report(pytester, how):
    write(
        pytester,
        """
def test_step(cudagraph):
    cudagraph("model.py:double", input="x=float32[4]")
    assert False
""",
    )
    result = run(pytester, how)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["double was called"])


def test_functions_are_found_by_name_where_the_test_process_finds_them(pytester):
    write(
        pytester,
        """
import torch
from helpers import shared

def build(device):
    return shared, (torch.randn(4, device=device),)

class Models:
    @staticmethod
    def small(device):
        return shared, (torch.randn(2, device=device),)

def test_of_this_file(cudagraph):
    graph = cudagraph(build)
    assert graph.entry == "tests/test_model.py:build" and graph.nodes == 1

def test_of_a_class(cudagraph):
    assert cudagraph(Models.small).entry == "tests/test_model.py:Models.small"

def test_of_a_package(cudagraph):
    assert cudagraph("package.inner:f", input=["x=float32[4]"]).nodes == 1

def test_an_entry_of_a_file_next_to_the_test(cudagraph):
    assert cudagraph("beside.py:f", input=["x=float32[4]"]).entry == "tests/beside.py:f"
""",
    )
    pytester.makeini("[pytest]\npythonpath = src")
    source = pytester.path / "src"
    (source / "package").mkdir(parents=True)
    (source / "helpers.py").write_text("def shared(x):\n    return x + 1\n")
    (source / "package" / "__init__.py").write_text("from .inner import f\n")
    (source / "package" / "inner.py").write_text("import helpers\n\nf = helpers.shared\n")
    (pytester.path / "tests" / "beside.py").write_text("from helpers import shared as f\n")
    run(pytester).assert_outcomes(passed=4)


def test_what_no_worker_could_import_is_refused_in_a_sentence(pytester):
    write(
        pytester,
        """
import functools

def build(device): ...

other = build

def build(device): ...

def test_lambda(cudagraph):
    cudagraph(lambda device: None)

def test_closure(cudagraph):
    def inner(device): ...
    cudagraph(inner)

def test_partial(cudagraph):
    cudagraph(functools.partial(build, 1))

def test_replaced(cudagraph):
    cudagraph(other)

def test_builtin(cudagraph):
    cudagraph(len)

def test_no_file(cudagraph):
    cudagraph("models.py:build")

def test_no_name(cudagraph):
    cudagraph("model.py")
""",
    )
    result = run(pytester)
    result.assert_outcomes(failed=7)
    result.stdout.fnmatch_lines(
        [
            "E*Failed: cudagraph() was given a lambda",
            "E*why: the capture runs in a separate process*",
            'E*fix: give a function at the top level of a module, or text: "model.py:build"',
            "E*cudagraph() was given inner, which is defined inside a function",
            "E*cudagraph() was given an object of type partial",
            "E*cudagraph() was given build, which is not what *test_model.py has under that name",
            "E*cudagraph() was given len, which no Python file defines",
            "E*Failed: models.py:build: no such file",
            "E*why: looked in *",
            "E*Failed: model.py: an ENTRY also names a function or a module in it",
        ]
    )
    assert no_frame_of_ours(result)


def test_without_a_configuration_names_do_not_depend_on_the_arguments(pytester):
    tests = """
def test_step(cudagraph):
    cudagraph("model.py:build").gate()
"""
    write(pytester, tests)
    (pytester.path / "tox.ini").unlink()
    result = run(pytester, "tests/test_model.py")
    result.stdout.fnmatch_lines(["*`pytest tests/test_model.py::test_step --cudagraph-update`*"])
    run(pytester, "--cudagraph-update").assert_outcomes(passed=1)
    run(pytester, "tests/test_model.py").assert_outcomes(passed=1)


def test_an_installed_function_is_named_by_its_module(tmp_path):
    assert named(textwrap.dedent, tmp_path, tmp_path) == ("textwrap:dedent", "textwrap:dedent")


@pytest.mark.gpu
def test_on_a_gpu_kernels_are_counted_and_speedups_judged(pytester):
    write(
        pytester,
        """
@pytest.mark.cudagraph(requires_gpu=True)
def test_step(cudagraph):
    graph = cudagraph("model.py:build")
    assert 0 < graph.kernels <= graph.nodes
    assert graph.exec_mib >= 0
    graph.gate(min_speedup=0.01, max_replay_us=1e6, baseline=False, max_runs=1)

def test_slow(cudagraph):
    cudagraph("model.py:build").gate(min_speedup=1e4, baseline=False, max_runs=1)
""",
    )
    result = run(pytester, device="cuda")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["E*AssertionError: model.py:build: failed: 1 of 1 figure: speedup*"]
    )


@pytest.mark.gpu
def test_on_a_gpu_a_baseline_has_times_where_the_test_requests_them(pytester):
    write(
        pytester,
        """
def test_step(cudagraph):
    cudagraph("model.py:build").gate(max_regression="500%", max_runs=3)
""",
    )
    run(pytester, "--cudagraph-update", device="cuda").assert_outcomes(passed=1)
    (file,) = pytester.path.glob("tests/__cudagraphs__/test_model/*.json")
    assert file.name == "test_step.json" and '"replay"' in file.read_text()
    run(pytester, device="cuda").assert_outcomes(passed=1)
    result = run(pytester, "--cudagraph-no-times", device="cuda")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*replay-us not judged in 1 test: --cudagraph-no-times was given"])


@pytest.mark.parametrize("stands", ["None", "object()"])
def test_whatever_replaced_standard_error(pytester, stands: str):
    write(
        pytester,
        f"""
import sys

def test_step(cudagraph, monkeypatch):
    monkeypatch.setattr(sys, "stderr", {stands})
    cudagraph("model.py:build").gate(max_nodes=9, baseline=False)
""",
    )
    run(pytester).assert_outcomes(passed=1)
