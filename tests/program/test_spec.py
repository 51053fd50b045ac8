"""ENTRY as text: what is accepted, and the error of each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgtool.model.failure import CgtoolError, Failure
from cgtool.program.spec import parse_entry


def wrong(text: str) -> Failure:
    with pytest.raises(CgtoolError) as caught:
        parse_entry(text)
    assert caught.value.failure.exit_code == 2
    return caught.value.failure


def test_a_file_and_a_module(write):
    path = write("def build(): ...")
    assert parse_entry(f"{path}:build").is_file
    assert parse_entry(f"{path}:Model.build").name == "Model.build"
    assert not parse_entry("package.module:build").is_file
    assert parse_entry("package.module:build").target == "package.module"


def test_the_last_colon_splits(write):
    path = write("def build(): ...", "a:b c'd\n/model.py")
    assert parse_entry(f"{path}:build").target == str(path)


@pytest.mark.parametrize("suffix", ["", ":"])
def test_no_name_offers_the_factories_of_the_file(write, suffix):
    path = write(
        "def main(): ...\ndef make(device: str): ...\ndef build(): ...\ndef _own(device): ..."
    )
    assert wrong(f"{path}{suffix}").fix == f"write {path}:build or {path}:make"
    assert wrong(str(path.parent)).fix == f"write {path}:build or {path}:make"


def test_a_script_has_its_own_commands(write):
    path = write("def main(): ...\nif __name__ == '__main__': main()")
    failure = wrong(str(path))
    assert f"`cgtool check {path}` and `cgtool run {path}` take" in failure.fix
    assert ":main" not in failure.fix


def test_no_name_and_no_file(write):
    assert wrong("model").fix == "write model:NAME if it is a module"
    assert "export it first" in wrong(str(write("", "a.ipynb"))).fix
    assert wrong("model.py").message == "model.py: no such file"
    path = write("")
    assert wrong(f"{path.parent}/modl.py").fix == f"did you mean {path}?"
    assert "before the colon" in wrong(":build").message
    assert wrong("").fix
    assert wrong(":").fix


@pytest.mark.parametrize("text", ["x.cgt", "x.cgt:build", "a/b.cgt"])
def test_a_capture_file(text):
    assert "is a capture file" in wrong(text).message


def test_a_folder(write, tmp_path, monkeypatch):
    write("", "models/one.py")
    failure = wrong(f"{tmp_path}/models:build")
    assert "is a folder" in failure.message
    assert f"{tmp_path}/models/one.py:build" in failure.fix
    monkeypatch.chdir(tmp_path)
    assert "is a folder" in wrong("models:build").message
    write("", "models/__init__.py")
    assert not parse_entry("models:build").is_file


def test_no_such_file_names_close_ones(write, tmp_path):
    write("", "transformer.py")
    failure = wrong(f"{tmp_path}/transfomer.py:build")
    assert failure.message.endswith("no such file")
    assert f"{tmp_path}/transformer.py:build" in failure.fix
    assert wrong(f"{tmp_path}/transformer:build").fix.endswith("transformer.py:build?")
    assert wrong("/no/such/folder/model.py:build").message.endswith("no such file")


def test_not_python(write):
    assert "nbconvert" in wrong(f"{write('', 'notebook.ipynb')}:build").fix
    assert "is not a Python file" in wrong(f"{write('', 'weights.pt')}:build").message


@pytest.mark.parametrize("name", ["2x", "a-b", "a.", ".a", "a b", "a..b", "f()", "a\nb"])
def test_no_python_name(write, name):
    assert "is not a Python name" in wrong(f"{write('')}:{name}").message


def test_paths_that_the_system_refuses():
    assert "no such file" in wrong(f"{'x' * 5000}/m.py:build").message
    assert "no such file" in wrong("a\0b.py:build").message


@given(st.text(max_size=40))
def test_any_text_is_answered(text):
    try:
        spec = parse_entry(text)
    except CgtoolError as error:
        assert error.failure.exit_code == 2
    else:
        assert f"{spec.target}:{spec.name}" == text


def test_the_file_is_not_run(write, tmp_path):
    path = write(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef build(): ...")
    wrong(str(path))
    parse_entry(f"{path}:build")
    assert not Path(tmp_path / "ran").exists()
