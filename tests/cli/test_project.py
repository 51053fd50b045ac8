"""Tables of ``pyproject.toml`` that match no entry: which are reported, and which are refused."""

from __future__ import annotations

import pytest

from cgtool.cli.gate_project import find_project, misplaced_tables
from cgtool.model.failure import CgtoolError

TABLE = '[tool.cgtool.gate]\nmax-nodes = 400\n[tool.cgtool.gate."{}"]\nmax-nodes = 3\n'


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with three models; called, it returns the warnings about a table in it."""
    monkeypatch.chdir(tmp_path)
    for name in ("model.py", "resnet18.py", "resnet34.py"):
        (tmp_path / name).write_text("def build(device): ...\ndef build_small(device): ...\n")

    def misplaced(table, *specs):
        (tmp_path / "pyproject.toml").write_text(TABLE.format(table))
        return misplaced_tables(find_project(tmp_path), specs)

    return misplaced


@pytest.mark.parametrize(
    ("table", "spec", "words"),
    [
        ("modle.py:build", "model.py:build", "there is no"),
        ("model.py:biuld", "model.py:build", "has no biuld"),
        ("./modell.py:build", "./model.py:build", "there is no"),
    ],
)
def test_almost_the_name_of_an_entry_is_a_slip(project, table, spec, words):
    with pytest.raises(CgtoolError) as caught:
        project(table, spec)
    failure = caught.value.failure
    assert failure.exit_code == 2
    assert f'pyproject.toml: [tool.cgtool.gate."{table}"] names no entry' in failure.message
    assert words in failure.message
    assert failure.fix == f'did you mean [tool.cgtool.gate."{spec}"]?'


@pytest.mark.parametrize(
    ("table", "specs"),
    [
        ("model.py:build", ["model.py:build"]),
        ("resnet18.py:build", ["resnet34.py:build"]),
        ("model.py:build_small", ["model.py:build"]),
        ("pkg.other:build", ["model.py:build"]),
        ("model.py:build", ["resnet18.py:build", "resnet34.py:build"]),
    ],
)
def test_a_table_of_another_entry_is_the_business_of_another_command(project, table, specs):
    assert project(table, *specs) == []


def test_a_table_of_a_file_that_is_gone_is_reported(project):
    ((spec, text),) = project("attic/old.py:train", "model.py:build")
    assert spec == "model.py:build"
    assert '[tool.cgtool.gate."attic/old.py:train"] is ignored: there is no' in text


def test_a_module_is_not_searched_and_a_similar_name_is_suggested(project):
    ((spec, text),) = project("pkg.modle:build", "model.py:build", "pkg.model:build")
    assert spec == "pkg.model:build"
    assert "is for pkg.modle:build, not for pkg.model:build" in text


def test_tables_match_captures_of_code_that_is_not_here(project):
    """Another machine made them: that a file is missing here says nothing."""
    ((spec, text),) = project("nets/resnet19.py:build", "nets/resnet20.py:build")
    assert (spec, "is not used" in text) == ("nets/resnet20.py:build", True)
    assert project("attic/old.py:train", "nets/resnet20.py:build") == []


@pytest.mark.parametrize(
    "table", ["cgtool.gate", "tools.cgtool.gate", "tool.cgtol.gate", "tool.CGTool.gate"]
)
def test_almost_the_name_of_our_table_is_a_slip(tmp_path, table):
    (tmp_path / "pyproject.toml").write_text(f"[{table}]\nmax-nodes = 3\n")
    with pytest.raises(CgtoolError) as caught:
        find_project(tmp_path)
    assert caught.value.failure.exit_code == 2
    assert f"pyproject.toml: [{table}] is ignored" in caught.value.failure.message
    assert caught.value.failure.fix == "did you mean [tool.cgtool.gate]?"


@pytest.mark.parametrize("text", ["[tool.ctool]\nx = 1\n", "cgtool = 3\n", "[tool.gate]\n", ""])
def test_tables_of_others_are_theirs(tmp_path, text):
    (tmp_path / "pyproject.toml").write_text(f"{text}[tool.cgtool.gate]\nmax-nodes = 3\n")
    assert find_project(tmp_path).tool == {"gate": {"max-nodes": 3}}
