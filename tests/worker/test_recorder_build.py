"""Where a program was recorded without the recorder in C++, that is compiled beside it, once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cgtool.model.capture import Environment
from cgtool.model.journal import JournalWriter
from cgtool.model.records import Began, Machine, NeedsRecorder
from cgtool.torch_compat import op_watch
from cgtool.worker.recorder_build import RecorderBuild


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Has a line for each call of a compiler, which makes an empty file."""
    calls = tmp_path / "calls"
    compiler = tmp_path / "compiler"
    compiler.write_text(
        "import pathlib, sys\n"
        f"pathlib.Path({str(calls)!r}).open('a').write('called\\n')\n"
        "pathlib.Path(sys.argv[-1]).write_bytes(b'')\n"
    )
    monkeypatch.setenv("CXX", f"{sys.executable} {compiler}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return calls


def test_it_is_compiled_for_the_python_of_the_program(tmp_path: Path, compiled: Path) -> None:
    folder = tmp_path / "journals"
    folder.mkdir()
    build = RecorderBuild()
    for pid, python in enumerate(("", sys.executable, sys.executable, "/gone/python"), 1):
        journal = JournalWriter(folder, f"{pid}-{pid}")
        journal.append(Began(0, pid, 0, (), forked=False))
        build.look(folder)
        journal.append(NeedsRecorder(python))
        build.look(folder)
        assert len(build._builds) == (pid > 1)
    captures = JournalWriter(folder, "9-9")
    captures.append(Machine(Environment("")))
    build.look(folder)
    assert len(build._known) == 5, "a journal is read until it is known what it needs"
    (process,) = build._builds.values()
    assert process.wait(60) == 0
    assert compiled.read_text() == "called\n"
    assert op_watch.library().exists()


def test_what_cannot_be_compiled_is_tried_once(
    compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = op_watch.os.environ["CXX"]
    monkeypatch.setenv("CXX", f"{sys.executable} -c 'import sys; sys.exit(\"error: too old\")'")
    with pytest.raises(op_watch.BuildError, match="too old"):
        op_watch.build_once()
    monkeypatch.setenv("CXX", works)
    op_watch.build_once()
    assert not compiled.exists()
    op_watch.build()  # somebody asks for it
    assert compiled.read_text() == "called\n"


def test_two_do_not_compile_it_at_the_same_time(compiled: Path) -> None:
    path = op_watch.library()
    path.parent.mkdir(parents=True)
    with op_watch._first_time(path) as is_first:
        assert is_first
        op_watch.build_once()
    assert not compiled.exists()
