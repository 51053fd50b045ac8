"""Names of commands: ``python -m cgtool``, ``cgtool help``, suggestions, completion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cgtool.cli.app import COMMANDS
from tests.forked_workers import run_cgtool

ENTRY = """\
import torch
def build(device):
    return torch.nn.Linear(4, 4).to(device), (torch.ones(2, 4, device=device),)
"""


def as_module(*arguments, cwd, **environment):
    return subprocess.run(
        [sys.executable, "-m", "cgtool", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **environment},
        capture_output=True,
        text=True,
        encoding="utf-8",
    )


def test_help_is_the_help_of_the_command(tmp_path):
    whole = as_module("help", cwd=tmp_path)
    assert (whole.returncode, whole.stderr) == (0, "")
    assert all(f"\n  {command} " in whole.stdout for command in COMMANDS)
    shown = as_module("help", "explain", cwd=tmp_path).stdout
    assert "Usage: cgtool explain [OPTIONS]" in shown
    assert shown == as_module("explain", "--help", cwd=tmp_path).stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_options_are_listed_under_headings_that_fit_80_columns(command, tmp_path):
    shown = run_cgtool(command, "--help", cwd=tmp_path).stdout
    assert max(map(len, shown.splitlines())) <= 80
    headings = [line[:-1] for line in shown.splitlines() if line[:1].isalpha() and line[-1] == ":"]
    order = ["Arguments", "Options", "Budgets", "Output options", "Capture options"]
    assert headings == [heading for heading in order if heading in headings]
    *_, capturing = shown.partition("Capture options:")
    assert ("--warmup-iters" in capturing) == ("--warmup-iters" in shown)
    lines = {"gate": 100, "dump": 60, "report": 50, "pools": 50, "diff": 50}
    assert shown.count("\n") <= lines.get(command, 100)


@pytest.mark.parametrize("arguments", [("captur", "model.py:build"), ("help", "captur")])
def test_a_command_that_does_not_exist(arguments, tmp_path):
    done = run_cgtool(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "No such command 'captur'. Did you mean capture?" in done.stderr


@pytest.mark.parametrize(
    ("typed", "expected"), [("cgtool ca", "capture"), ("cgtool capture --cap", "--capture-error")]
)
def test_shell_completion(typed, expected, tmp_path):
    program = "import sys; sys.argv = ['cgtool']; from cgtool.cli.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **os.environ,
            "_CGTOOL_COMPLETE": "complete_bash",
            "COMP_WORDS": typed,
            "COMP_CWORD": str(typed.count(" ")),
        },
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith(expected), done.stderr


def test_names_in_utf_8_where_the_locale_is_c(tmp_path):
    folder = tmp_path / "dépôt"
    folder.mkdir()
    (folder / "modèle.py").write_text(ENTRY)
    arguments = "capture", "modèle.py:build", "-q", "-o", "résumé.cgt", "--device", "simulated"
    done = as_module(*arguments, cwd=folder, LC_ALL="C", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    assert (folder / "résumé.cgt").exists()


def test_a_breakpoint_is_skipped(tmp_path):
    (tmp_path / "model.py").write_text(ENTRY.replace("    return", "    breakpoint()\n    return"))
    done = run_cgtool("capture", "model.py:build", "-q", "--device", "simulated", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "model.py:3: breakpoint() is skipped" in done.stderr


SEMAPHORE = """\
import multiprocessing, torch
value = multiprocessing.get_context("spawn").Value("i", 0)
x = torch.ones(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
graph.replay()
"""


def test_a_check_says_nothing_about_the_semaphores_of_its_process(tmp_path):
    """It ends without exit handlers, and multiprocessing would call them leaked."""
    (tmp_path / "train.py").write_text(SEMAPHORE)
    done = as_module("check", "train.py", "-q", "--device", "simulated", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


UNCAPTURED = """\
import torch
def build(device):
    return lambda x: x * x.sum().item(), (torch.ones(4, device=device),)
"""


@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [
        (("verify", "entry.py:build", "--format", "json"), 4),
        (("capture", "entry.py:build", "--format", "json"), 4),
        (("dump", "entry.py:build", "--json"), 4),
        (("pools", "missing.cgt", "--format", "json"), 2),
        (("gate", "missing.cgt", "--format", "json", "--max-nodes", "3"), 2),
        (("check", "entry.py:other", "--format", "json"), 2),
    ],
)
def test_an_error_is_json_where_the_result_would_be(arguments, exit_code, tmp_path):
    (tmp_path / "entry.py").write_text(UNCAPTURED)
    device = () if arguments[1].endswith(".cgt") else ("--device", "simulated")
    done = run_cgtool(*arguments, *device, cwd=tmp_path)
    assert done.returncode == exit_code, done.stderr
    printed = json.loads(done.stdout)
    assert printed["schema"] == "cgtool-error"
    error = printed["error"]
    assert error["exit_code"] == exit_code
    assert error["message"] in done.stderr
    if arguments[1] == "entry.py:build":
        assert (error["code"], error["file"], error["line"]) == (
            "sync-item", str(tmp_path / "entry.py"), 3,
        )  # fmt: skip
        assert error["fix"]


def test_sentences_stay_on_one_line_in_a_pipe(tmp_path):
    capture = Path(__file__).parents[2] / "samples" / "captures" / "profile-transformer.cgt"
    sentence = (
        "fix: put independent branches of the forward on separate streams: the backward of an "
        "op runs on the stream of its forward"
    )
    for command in (["profile", capture], ["profile", capture, "-o", "shown.txt"]):
        done = as_module(*map(str, command), cwd=tmp_path, COLUMNS="")
        shown = done.stdout or (tmp_path / "shown.txt").read_text()
        assert any(line.endswith(sentence) for line in shown.splitlines())
        rules = [line for line in shown.splitlines() if line.startswith("──")]
        assert rules and max(map(len, rules)) <= 100
    narrow = as_module("profile", str(capture), cwd=tmp_path, COLUMNS="60").stdout
    assert max(map(len, narrow.splitlines())) <= 60
    assert sentence in " ".join(narrow.split())


def test_a_file_that_is_replaced_is_said(tmp_path):
    (tmp_path / "m.py").write_text(ENTRY)
    samples = Path(__file__).parents[2] / "samples" / "captures"
    commands = {
        "report.html": ("report", samples / "mlp.cgt"),
        "m-build.cgt": ("capture", "m.py:build", "--device", "simulated", "-q"),
        "b.json": ("gate", samples / "mlp.cgt", "--save-baseline", "b.json", "--max-nodes", "99"),
        "true.cgt": ("run", "-q", "-o", "true.cgt", "--", "true"),
    }
    for name, command in commands.items():
        first, second = (run_cgtool(*command, cwd=tmp_path).stderr for _ in range(2))
        assert f"saved {name}\n" in first
        assert f"saved {name} (replaced the file that was there)\n" in second
