"""Paths that the system refuses to read: each is reported as what it is, and none as a bug."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CAPTURES = Path(__file__).resolve().parent.parent.parent / "samples" / "captures"
LONG = "x" * 300
HELD = ["gate", "a.cgt", "--max-nodes", "100"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("a.cgt").write_bytes((CAPTURES / "profile-two_streams.cgt").read_bytes())
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ["gate", LONG, "--max-nodes", "1"],
        ["gate", f"{LONG}.json", "--max-nodes", "1"],
        ["gate", f"{LONG}:f", "--max-nodes", "1"],
        [*HELD, "--baseline", LONG],
        [*HELD, "--save-baseline", LONG],
        [*HELD, "--format", f"json={LONG}"],
        [*HELD, "-o", LONG],
        ["diff", LONG, "a.cgt"],
        ["diff", f"{LONG}:f", "a.cgt"],
        ["diff", "a.cgt", "a.cgt", "-o", LONG],
        ["profile", LONG],
        ["profile", "a.cgt", "-o", LONG],
        ["profile", "a.cgt", "-o", f"{LONG}/out.txt"],
        ["bench", "m.py:f", "--baseline", LONG],
        ["bench", "m.py:f", "--save", LONG],
    ],
)
def test_a_name_that_is_too_long(arguments: list[str], here: Path, cgtool) -> None:
    code, _, err = cgtool(*arguments)
    assert code in (2, 3, 4), err
    assert "bug" not in err
    assert LONG in err
    assert [path.name for path in here.iterdir()] == ["a.cgt"]


def test_a_long_name_in_pyproject(here: Path, cgtool) -> None:
    Path("pyproject.toml").write_text(f'[tool.cgtool.gate]\nbaseline = "{LONG}"\n')
    code, _, err = cgtool("gate", "a.cgt")
    assert code == 2
    assert "File name too long" in err
    assert "pyproject.toml names it as the baseline" in err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may enter every folder")
@pytest.mark.parametrize(
    "arguments",
    [["gate", "shut/a.cgt", "--max-nodes", "1"], [*HELD, "--baseline", "shut/b.json"],
     [*HELD, "-o", "shut/o.txt"], ["profile", "shut/a"]],
)  # fmt: skip
def test_a_folder_that_may_not_be_entered(arguments: list[str], here: Path, cgtool) -> None:
    Path("shut").mkdir(mode=0)
    try:
        code, _, err = cgtool(*arguments)
    finally:
        Path("shut").chmod(0o755)
    assert code == 2
    assert "bug" not in err


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = "import os, sys; os.rmdir(os.getcwd()); from cgtool.cli.app import main; main()"
    command = [sys.executable, "-c", script, "gate", str(CAPTURES / "mlp.cgt"), "--max-nodes", "99"]
    done = subprocess.run(command, cwd=gone, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "the current folder cannot be read" in done.stderr


def test_a_name_that_is_not_utf_8_in_json(here: Path, cgtool) -> None:
    odd = os.fsdecode(b"odd-\xff.cgt")
    Path("a.cgt").rename(odd)
    for arguments in (["diff", odd, odd], ["gate", odd, "--max-nodes", "100"]):
        code, out, err = cgtool(*arguments, "--format", "json")
        assert (code, err) == (0, "")
        assert r"odd-\\udcff.cgt" in out
        assert json.loads(out)["schema"] == f"cgtool-{arguments[0]}"


def test_a_name_that_does_not_print(here: Path, cgtool) -> None:
    name = "red\x1b[31m\n.html"
    code, _, errors = cgtool("report", "a.cgt", "-o", name)
    assert (code, Path(name).exists()) == (0, True)
    assert errors == "saved red\\x1b[31m\\n.html\n"
