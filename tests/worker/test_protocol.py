"""A worker finds the modules of the process that asks, and prints to where that prints."""

from __future__ import annotations

import io
import os
import sys
import sysconfig
from contextlib import redirect_stderr

import pytest

from cgtool.model.capture_file import read
from cgtool.model.jobs import CaptureJob
from cgtool.model.options import CaptureOptions
from cgtool.worker import child, supervisor
from tests.forked_workers import workers  # noqa: F401

MODEL = """\
import os
import torch
import helper


def step(x):
    print("printed")
    os.write(1, b"written to 1\\n")
    os.write(2, b"written to 2\\n")
    return helper.double(x)
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """``step`` needs a module that only ``sys.path`` of this process leads to."""
    (tmp_path / "model.py").write_text(MODEL)
    folder = tmp_path / "with:colon"
    folder.mkdir()
    (folder / "helper.py").write_text("def double(x):\n    return x * 2\n")
    monkeypatch.syspath_prepend(str(folder))
    return tmp_path


def attempt(project):
    output = project / "out.cgt"
    options = CaptureOptions(device="simulated", input=("x=float32[4]",))
    supervisor.run(CaptureJob(f"{project / 'model.py'}:step", options), output)
    return read(output)


def test_modules_are_found_without_an_environment_variable(project, workers):  # noqa: F811
    before = dict(os.environ)
    assert len(attempt(project).graphs[0].nodes) == 1
    assert dict(os.environ) == before


def test_a_folder_with_a_module_of_pythons_own_is_searched_last(project):
    (project / "with:colon" / "random.py").write_text("raise ImportError('the wrong random')\n")
    assert len(attempt(project).graphs[0].nodes) == 1


class Closed(io.StringIO):
    """A closed stream: nothing may be written to it."""

    def write(self, text):
        raise ValueError("I/O operation on closed file")


def test_prints_go_to_whatever_replaced_standard_error(project, workers):  # noqa: F811
    with redirect_stderr(io.StringIO()) as text:
        attempt(project)
    for words in ("printed", "written to 1", "written to 2"):
        assert words in text.getvalue()
    for stream in (None, Closed()):
        with redirect_stderr(stream):
            attempt(project)


SLOW = """\
import os
import sys
import time


class Slow:
    def write(self, text):
        pass

    def flush(self):
        time.sleep(0.2)
        os.write(1, b"flushed\\n")


def step(x):
    sys.stdout = Slow()
    return x * 2
"""


def test_what_was_printed_is_written_before_the_answer(project, workers):  # noqa: F811
    (project / "model.py").write_text(SLOW)
    with redirect_stderr(io.StringIO()) as text:
        attempt(project)
    assert "flushed" in text.getvalue()


def test_the_descriptor_of_standard_error_is_used_where_it_has_one(tmp_path):
    with (
        (tmp_path / "log").open("w") as file,
        redirect_stderr(file),
        supervisor.standard_error() as standard_error,
    ):
        assert standard_error == file.fileno()


def test_the_path_is_that_of_the_process_by_full_names(tmp_path, monkeypatch):
    commands = sysconfig.get_path("scripts")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [commands, "", "lib", "lib", tmp_path, "\udcff", "/x.zip"])
    assert supervisor.import_path() == (str(tmp_path), str(tmp_path / "lib"), "/x.zip")


def test_new_folders_come_first_and_shadowing_ones_last(tmp_path, monkeypatch):
    plain, module, package, known = (tmp_path / name for name in ("a", "b", "c", "known"))
    for folder in (plain, module, package / "torch", plain / "test"):
        folder.mkdir(parents=True)
    (module / "random.py").touch()
    (package / "torch" / "__init__.py").touch()
    # Many projects have a package of that name, and none needs Python's.
    (plain / "test" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(known)])
    child.extend_import_path(
        [str(folder) for folder in (module, plain, known, package, tmp_path / "gone")]
    )
    expected = [plain, tmp_path / "gone", known, module, package]
    assert sys.path == [str(folder) for folder in expected]


def test_missing_numpy_prints_nothing(project, monkeypatch, capfd):
    missing = project / "missing"
    missing.mkdir()
    (missing / "numpy.py").write_text("raise ModuleNotFoundError(\"No module named 'numpy'\")\n")
    monkeypatch.setenv("PYTHONPATH", str(missing), prepend=os.pathsep)
    assert len(attempt(project).graphs[0].nodes) == 1
    assert "printed" in (printed := capfd.readouterr().err)
    assert "NumPy" not in printed
