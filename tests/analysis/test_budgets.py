"""Budgets: what options and pyproject.toml may say, what goes first, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from cgtool.analysis.gate.budgets import NAMES, Budgets, checked, from_options
from cgtool.analysis.gate.metrics import BY_NAME, METRICS
from cgtool.cli.gate_project import find_project, project_budgets
from cgtool.model.failure import CgtoolError


def limits(budgets: Budgets) -> dict[str, float]:
    return {
        f"{limit.bound} {limit.metric}{f'.{limit.phase}' if limit.phase else ''}": limit.limit
        for limit in budgets.limits
    }


def increases(budgets: Budgets) -> dict[str, float | None]:
    return {
        f"{increase.metric}{f'.{increase.phase}' if increase.phase else ''}": increase.share
        if increase.amount is None
        else increase.amount
        for increase in budgets.increases
    }


def from_pyproject(path: Path, spec: str, *, simulated: bool) -> Budgets:
    project = find_project(path.parent)
    assert project is not None
    assert project.path == path
    return project_budgets(project, spec, simulated=simulated)


def refused(call, *words: str) -> None:
    with pytest.raises(CgtoolError) as caught:
        call()
    failure = caught.value.failure
    assert failure.exit_code == 2
    for word in words:
        assert word in f"{failure.message}\n{failure.why}\n{failure.fix}"


# --- options


def test_a_budget_for_the_whole_and_for_a_phase() -> None:
    budgets = from_options(
        {"max-nodes": ["400", "backward=300"], "min-speedup": ["both=1.5"], "max-pool-mib": ["1e2"]}
    )
    assert limits(budgets) == {
        "max nodes": 400,
        "max nodes.backward": 300,
        "min speedup.both": 1.5,
        "max pool-mib": 100,
    }
    assert from_options({"max-nodes": ["all=3"]}).limits[0].phase is None


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("max-nodes", "4MiB", ["--max-nodes", "'4MiB'", "a count"]),
        ("max-nodes", "", ["not a number"]),
        ("max-nodes", "nan", ["is not a limit"]),
        ("max-nodes", "inf", ["is not a limit"]),
        ("max-nodes", "1e999", ["is not a limit"]),
        ("max-nodes", "-1", ["negative"]),
        ("max-nodes", "3.5", ["not a whole number"]),
        ("max-nodes", "1_000", ["not a number"]),
        ("max-nodes", "٣", ["not a number"]),
        ("max-nodes", "backwards=3", ["did you mean backward?"]),
        ("max-nodes", "both=3", ["unknown phase 'both'"]),
        ("max-nodes", "=3", ["unknown phase ''"]),
        ("max-pool-mib", "64MB", ["MiB (1,048,576 bytes)", "unit is in the name"]),
        ("max-pool-mib", "forward=64", ["only for the whole"]),
        ("max-capture-ms", "3s", ["milliseconds"]),
        ("max-replay-us", "0x10", ["microseconds"]),
        ("min-speedup", "1.5x", ["'1.5x'", "1.5"]),
    ],
)
def test_options_that_are_not_a_budget(name: str, text: str, words: list[str]) -> None:
    refused(lambda: from_options({name: [text]}), f"--{name}", *words)


def test_the_same_budget_twice() -> None:
    refused(lambda: from_options({"max-nodes": ["3", "all=4"]}), "nodes is given twice")
    refused(
        lambda: from_options({}, ["replay-us=2%"], "3%"),
        "replay-us is given twice: by --max-increase replay-us and by --max-regression",
    )


@pytest.mark.parametrize(
    "text",
    [
        'max-regression = "1%"\nmax-increase = {replay-us = "50%"}',
        'max-increase = {replay-us = {all = "1%"}, "replay-us.all" = "50%"}',
    ],
)
def test_the_same_tolerance_twice_in_one_table(text: str, tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text(f"[tool.cgtool.gate]\n{text}\n")
    refused(lambda: from_pyproject(path, "a.py:f", simulated=False), "replay-us is given twice")


def test_tolerances() -> None:
    budgets = from_options(
        {}, ["nodes=2%", "nodes.backward=3", "pool-mib=1.5", "capture-ms=50%"], "1.5%"
    )
    assert increases(budgets) == {
        "nodes": pytest.approx(0.02),
        "nodes.backward": 3,
        "pool-mib": 1.5,
        "capture-ms": 0.5,
        "replay-us": pytest.approx(0.015),
    }
    assert budgets.allowed(BY_NAME["nodes"], "backward").amount == 3
    assert budgets.allowed(BY_NAME["nodes"], "forward").share == pytest.approx(0.02)
    assert budgets.allowed(BY_NAME["kernels"], None).share == 0
    assert budgets.allowed(BY_NAME["eager-us"], None).share == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nodes", ["METRIC=N"]),
        ("nodez=1", ["unknown metric 'nodez'", "did you mean nodes?"]),
        ("zzz=1", ["unknown metric 'zzz'", "one of graphs, nodes"]),
        ("nodes=", ["neither a percentage nor an amount"]),
        ("nodes=some", ["neither"]),
        ("nodes=-1", ["not an increase"]),
        ("nodes=nan", ["not an increase"]),
        ("nodes=inf%", ["not an increase"]),
        ("nodes.backwards=1", ["did you mean backward?"]),
        ("pool-mib.forward=1", ["only for the whole"]),
        ("replay-us=3", ["not a percentage", "ratio"]),
        ("speedup=200%", ["more than all of it"]),
    ],
)
def test_invalid_tolerances(text: str, words: list[str]) -> None:
    refused(lambda: from_options({}, [text]), "--max-increase", *words)
    refused(lambda: from_options({}, [], "3"), "--max-regression", "write 3%")


def test_a_minimum_above_its_maximum() -> None:
    refused(
        lambda: checked(from_options({"max-nodes": ["3"], "min-nodes": ["5"]})),
        "--min-nodes is 5",
        "--max-nodes of 3",
    )
    fine = from_options({"max-nodes": ["3", "backward=1"], "min-nodes": ["3", "forward=2"]})
    assert checked(fine) == fine


def test_the_table_has_a_unit_in_the_name_of_what_has_one() -> None:
    for metric in METRICS:
        if metric.unit in ("MiB", "ms", "us"):
            assert metric.name.endswith(metric.unit.lower())
        assert metric.bounds == ("min",) if metric.larger_is_better else "max" in metric.bounds
    assert list(NAMES)[:3] == ["max-graphs", "max-nodes", "min-nodes"]


# --- pyproject.toml


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> Path:
        (tmp_path / "pyproject.toml").write_text(text)
        return tmp_path / "pyproject.toml"

    return write


def test_tables_of_all_and_of_one_entry(project) -> None:
    path = project("""
        [tool.cgtool.gate]
        max-nodes = 400
        max-pool-mib = 64.5
        max-increase = {nodes = "2%", pool-mib = 1, kernels = {backward = 2}}
        max-regression = "4%"
        baseline = "ci/all.json"
        [tool.cgtool.gate.max-kernels]
        all = 50
        backward = 30
        [tool.cgtool.gate."model.py:build"]
        max-nodes = 20
        min-speedup.both = 1.5
        baseline = "ci/model.json"
        [tool.cgtool.gate."pkg.model:build"]
        max-nodes = 30
    """)
    budgets = from_pyproject(path, "other.py:build", simulated=False)
    whole = {"max nodes": 400, "max pool-mib": 64.5, "max kernels": 50, "max kernels.backward": 30}
    assert limits(budgets) == whole
    assert increases(budgets) == {
        "nodes": pytest.approx(0.02),
        "pool-mib": 1,
        "kernels.backward": 2,
        "replay-us": pytest.approx(0.04),
    }
    assert budgets.baseline == path.parent / "ci" / "all.json"
    mine = from_pyproject(path, "model.py:build", simulated=False)
    assert limits(mine) == {**whole, "max nodes": 20, "min speedup.both": 1.5}
    assert mine.baseline == path.parent / "ci" / "model.json"
    assert from_pyproject(path, "./model.py:build", simulated=False) == mine
    assert from_pyproject(path, str(path.parent / "model.py:build"), simulated=False) == mine
    assert limits(from_pyproject(path, "pkg.model:build", simulated=False))["max nodes"] == 30
    # Options before the file.
    given = from_options({"max-nodes": ["7"]}).over(mine)
    assert limits(given) == {**limits(mine), "max nodes": 7}


def test_a_path_is_relative_to_the_file_that_contains_it(project, monkeypatch) -> None:
    path = project('[tool.cgtool.gate."sub/model.py:build"]\nmax-nodes = 3')
    (path.parent / "sub").mkdir()
    monkeypatch.chdir(path.parent / "sub")
    assert limits(from_pyproject(path, "model.py:build", simulated=False)) == {"max nodes": 3}
    # A capture keeps the name that was typed where it was made.
    assert limits(from_pyproject(path, "sub/model.py:build", simulated=False)) == {"max nodes": 3}
    assert limits(from_pyproject(path, "other.py:build", simulated=False)) == {}


def test_a_table_for_the_simulated_device_replaces_the_other(project) -> None:
    path = project("""
        [tool.cgtool.gate]
        max-nodes = 400
        max-kernels = 400
        baseline = "gpu.json"
        [tool.cgtool.gate.simulated]
        max-nodes = 150
        [tool.cgtool.gate."model.py:build"]
        max-edges = 9
    """)
    real = {"max nodes": 400, "max kernels": 400}
    assert limits(from_pyproject(path, "a.py:b", simulated=False)) == real
    budgets = from_pyproject(path, "a.py:b", simulated=True)
    assert limits(budgets) == {"max nodes": 150}
    assert budgets.baseline is None
    both = from_pyproject(path, "model.py:build", simulated=True)
    assert limits(both) == {"max nodes": 150, "max edges": 9}


def test_the_nearest_file_with_a_table_counts(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert find_project(inner) is None
    (tmp_path / "pyproject.toml").write_text("[tool.cgtool.gate]\nmax-nodes = 1")
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.ruff]\nline-length = 100")
    assert find_project(inner).path == tmp_path / "pyproject.toml"
    (inner / "pyproject.toml").write_text("[tool.cgtool]")
    assert find_project(inner).path == inner / "pyproject.toml"
    assert from_pyproject(inner / "pyproject.toml", "a.py:b", simulated=False) == Budgets()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-node = 3", ["unknown key 'max-node'", "did you mean max-nodes?"]),
        ("max_nodes = 3", ["did you mean max-nodes?"]),
        ("max-pool-gib = 3", ["did you mean max-pool-mib?"]),
        ("max-replay-ms = 3", ["did you mean max-replay-us?"]),
        ("max-speedup = 3", ["did you mean min-speedup?"]),
        ("frobnicate = 3", ["unknown key 'frobnicate'", "--help"]),
        ('max-nodes = "400"', ["'400' is not a number"]),
        ("max-nodes = true", ["True"]),
        ("max-nodes = [1]", ["not a number"]),
        ("max-nodes = nan", ["is not a limit"]),
        ("max-nodes = -inf", ["is not a limit"]),
        ("max-nodes = -4", ["negative"]),
        ("max-nodes = 2.5", ["not a whole number"]),
        ("max-nodes = 1" + "0" * 400, ["is not a limit"]),
        ("max-nodes = 1" + "0" * 5000, ["not valid TOML"]),
        ("max-nodes.sideways = 1", ["unknown phase 'sideways'"]),
        ("max-pool-mib.forward = 1", ["only for the whole"]),
        ('max-increase = "2%"', ["a table, not text"]),
        ('max-increase.node = "2%"', ["did you mean nodes?"]),
        ("max-increase.nodes = true", ["not true or false"]),
        ("max-increase.nodes = [1]", ["not a list"]),
        ("max-regression = 3", ["write 3%"]),
        ("max-regression = {}", ["not a table"]),
        ("baseline = 3", ["the name of a file"]),
        ("simulated = 3", ["a table, not 3"]),
        ("simulated.max-node = 3", ["did you mean max-nodes?", "gate.simulated]"]),
        ("max-nodes = 3\nmin-nodes = 4", ["more than", "max-nodes of 3"]),
        ('"model.py:build" = 3', ["a table, not 3"]),
        ('"model.py:build".max-node = 3', ['gate."model.py:build"]', "did you mean max-nodes?"]),
        ('"model.py:build"."a.py:b" = {}', ["unknown key 'a.py:b'"]),
        ("[[", ["not valid TOML"]),
    ],
)
def test_what_a_table_must_not_hold(project, text: str, words: list[str]) -> None:
    path = project(f"[tool.cgtool.gate]\n{text}\n")
    refused(lambda: from_pyproject(path, "a.py:b", simulated=False), str(path), *words)


def test_other_tables_of_the_tool(project) -> None:
    path = project("[tool.cgtool.gates]\nmax-nodes = 3")
    refused(lambda: from_pyproject(path, "a.py:b", simulated=False), "did you mean gate?")
    path = project("tool.cgtool = 3")
    refused(lambda: from_pyproject(path, "a.py:b", simulated=False), "a table, not 3")
    path = project("[tool.cgtool]\ngate = []")
    refused(lambda: from_pyproject(path, "a.py:b", simulated=False), "a table, not a list")


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(b"\xff\xfe[tool]")
    refused(lambda: find_project(tmp_path), "not valid TOML")


def test_two_tables_of_one_entry(project) -> None:
    path = project("""
        [tool.cgtool.gate."model.py:build"]
        max-nodes = 20
        [tool.cgtool.gate."./model.py:build"]
        max-nodes = 30
    """)
    words = ("model.py:build", "./model.py:build", "the same entry", "one table")
    refused(lambda: from_pyproject(path, "model.py:build", simulated=False), *words)
    assert from_pyproject(path, "other.py:build", simulated=False).limits == ()
