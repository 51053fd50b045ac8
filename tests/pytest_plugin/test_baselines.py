"""Baselines of tests: recorded by one flag, compared ever after, never passed over in silence."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgtool.pytest_plugin.gate import path_of, safe
from tests.pytest_plugin.projects import MODEL, run, write

pytest_plugins = ["pytester"]

GATED = """
def test_step(cudagraph):
    cudagraph("model.py:build").gate()
"""
FILE = "tests/__cudagraphs__/test_model/test_step.simulated.json"


@pytest.fixture
def recorded(pytester):
    """A project with one baseline; its file."""
    write(pytester, GATED)
    run(pytester, "--cudagraph-update").assert_outcomes(passed=1)
    return pytester.path / FILE


def test_the_first_run_fails_and_says_how_to_record(pytester):
    write(pytester, GATED)
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            f"E*Failed: this test has no baseline: {FILE} does not exist",
            "E*fix: record it with `pytest tests/test_model.py::test_step --cudagraph-update` and "
            "commit the file*",
        ]
    )
    assert not (pytester.path / FILE).exists()


def test_update_records_and_then_the_test_holds_until_the_graph_changes(pytester):
    write(pytester, GATED)
    result = run(pytester, "--cudagraph-update")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["cudagraph: 0 gated, 1 baseline written", f"wrote {FILE}"])
    kept = json.loads((pytester.path / FILE).read_text())
    assert kept["counts"]["nodes"] == 5
    assert kept["entry"]["spec"] == "model.py:build" and "file" not in kept["entry"]
    assert str(pytester.path) not in (pytester.path / FILE).read_text()

    result = run(pytester)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["cudagraph: 1 gated (1 on the simulated device)"])

    write(pytester, GATED, MODEL.replace("model(x).relu()", "model(x).relu().sin()"))
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E*AssertionError: model.py:build: failed: * nodes 8, baseline 5*",
            "E*+1 sin at model.py:7",
            "E*if this change is intended: pytest *test_step --cudagraph-update",
        ]
    )
    run(pytester, "--cudagraph-update").assert_outcomes(passed=1)
    run(pytester).assert_outcomes(passed=1)


def test_a_baseline_that_says_the_same_is_left_as_it_is(pytester, recorded):
    before = recorded.stat().st_mtime_ns
    result = run(pytester, "--cudagraph-update")
    result.stdout.fnmatch_lines(["cudagraph: 0 gated, 1 unchanged"])
    assert recorded.stat().st_mtime_ns == before


def test_over_its_budget_no_baseline_is_written(pytester):
    write(
        pytester,
        """
def test_step(cudagraph):
    cudagraph("model.py:build").gate(max_nodes=1)
""",
    )
    run(pytester, "--cudagraph-update").assert_outcomes(failed=1)
    assert not (pytester.path / FILE).exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "*test_step.simulated.json: not a readable baseline: it is empty"),
        ('{"schema": "cgtool-base', "*test_step.simulated.json: not a readable baseline*"),
        ("[]", "*test_step.simulated.json: not a readable baseline*"),
    ],
)
def test_a_damaged_baseline_fails_and_update_rewrites_it(pytester, recorded, text, said):
    good = recorded.read_text()
    recorded.write_text(text)
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [f"E*Failed: {said}", "E*fix: `pytest tests/test_model.py::test_step --cudagraph-update`"]
    )
    run(pytester, "--cudagraph-update").assert_outcomes(passed=1)
    assert json.loads(recorded.read_text())["counts"] == json.loads(good)["counts"]


def test_a_baseline_of_a_newer_cgtool_says_so(pytester, recorded):
    newer = {**json.loads(recorded.read_text()), "schema_version": 99}
    recorded.write_text(json.dumps(newer))
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*newer cgtool (schema 99*", "E*fix: upgrade cgtool"])


def test_an_unreadable_baseline_is_not_reported_as_missing(pytester, recorded):
    recorded.unlink()
    recorded.symlink_to(recorded.name)
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E*Failed: cannot read *test_step.simulated.json: Too many levels*"]
    )


def test_a_baseline_of_another_entry_is_refused(pytester, recorded):
    write(pytester, GATED.replace("build", "larger"))
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [f"E*Failed: {FILE} is a baseline of model.py:build, and this test captures *:larger"]
    )


def test_the_baseline_of_a_gpu_is_named_where_that_of_the_simulated_device_is_missing(
    pytester, recorded
):
    recorded.rename(recorded.with_name("test_step.json"))
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E*why: tests/*/test_step.json is that of a GPU; this run is on the simulated device"]
    )


def test_every_case_and_every_graph_of_a_test_has_its_own_baseline(pytester):
    write(
        pytester,
        """
class TestStep:
    @pytest.mark.parametrize("path", ["a-b", "../é ::[]", "x" * 300])
    def test_odd(self, cudagraph, path):
        cudagraph("model.py:build", backward=False).gate()

def test_two(cudagraph):
    first, second = cudagraph("model.py:double", input="x=float32[4]"), cudagraph("model.py:build")
    second.gate()
    first.gate()
""",
    )
    run(pytester, "--cudagraph-update").assert_outcomes(passed=4)
    folder = pytester.path / "tests/__cudagraphs__/test_model"
    names = sorted(path.name for path in folder.iterdir())
    assert names[-2:] == ["test_two.2.simulated.json", "test_two.simulated.json"]
    assert len(names) == 5 and "TestStep.test_odd[a-b].simulated.json" in names
    assert sorted(pytester.path.rglob("*.json")) == sorted(folder.iterdir())
    specs = [json.loads((folder / name).read_text())["entry"]["spec"] for name in names[-2:]]
    assert specs == ["model.py:build", "model.py:double"]
    run(pytester, "-k", "two or a-b").assert_outcomes(passed=2)


@given(st.text(), st.text())
def test_no_two_tests_share_a_file_and_every_name_is_safe(a, b):
    assert (safe(a) == safe(b)) == (a == b)
    for stem in (safe(a), safe(b)):
        assert len(stem.encode()) < 200 and not set(stem) & set('/\\:*?"<>| \0\n')


def test_real_and_simulated_counts_are_kept_apart(request):
    real = path_of(request.node, 1, simulated=False)
    simulated = path_of(request.node, 2, simulated=True)
    name = "test_real_and_simulated_counts_are_kept_apart"
    assert (real.name, simulated.name) == (f"{name}.json", f"{name}.2.simulated.json")
    assert real.parent == simulated.parent == request.path.parent / "__cudagraphs__/test_baselines"
