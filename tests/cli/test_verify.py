"""`cgtool verify` end to end on the simulated device."""

from __future__ import annotations

import json

import pytest

from tests.forked_workers import run_cgtool

ENTRIES = """
import itertools
import torch

def right(device):
    return lambda x: x * 2, (torch.ones(4, device=device),)

def wrong(device):
    scales = itertools.count(1)
    def scale(x):
        return x * next(scales)
    return scale, (torch.ones(4, device=device),)

def uncaptured(device):
    return lambda x: x * x.sum().item(), (torch.ones(4, device=device),)

def warned(device):
    return lambda x: x.mul_(2), (torch.ones(4, device=device),)

def noisy(device):
    generator = torch.Generator(device).manual_seed(1)
    hidden = map(lambda _: generator, itertools.count())
    def draw(x):
        return x + torch.randn(x.shape, generator=next(hidden), device=x.device)
    return draw, (torch.ones(4, device=device),)

def empty(device):
    return lambda x: x, (torch.ones(4, device=device),)
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "entry.py").write_text(ENTRIES)

    def verify(name, *arguments):
        done = run_cgtool(
            "verify", f"entry.py:{name}", "--device", "simulated", *arguments, cwd=tmp_path
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return verify


def test_verified(run):
    done = run("right")
    assert done.returncode == 0, done.stderr
    assert "verified: 5 comparisons, replay equals eager" in done.stdout
    assert "(simulated)" in done.stdout


def test_a_mismatch_with_its_line_and_reason(run):
    done = run("wrong")
    assert done.returncode == 1
    assert "differs" in done.stdout and "python-scalar-frozen" in done.stdout
    assert "entry.py:11" in done.stdout and "return x * next(scales)" in done.stdout
    assert "not verified" in done.stdout


def test_json_has_every_comparison(run):
    done = run("wrong", "--format", "json", "--replays", "2", "--trials", "0")
    report = json.loads(done.stdout)
    assert (done.returncode, report["schema"]) == (1, "cgtool-verify")
    assert [comparison["trial"] for comparison in report["comparisons"]] == [
        "captured inputs, replay 1",
        "captured inputs, replay 2",
    ]
    assert report["findings"][0]["code"] == "python-scalar-frozen"
    assert report["environment"]["simulated"]


def test_sarif_names_the_line(run, tmp_path):
    done = run("wrong", "--format", "sarif", "-o", "out.sarif")
    assert (done.returncode, done.stdout) == (1, "")
    (result,) = json.loads((tmp_path / "out.sarif").read_text())["runs"][0]["results"]
    assert result["ruleId"] == "python-scalar-frozen"


def test_what_does_not_capture_ends_with_4_and_its_code(run):
    done = run("uncaptured")
    assert done.returncode == 4
    assert "entry.py:15" in done.stderr


def test_a_warning_leaves_it_verified(run):
    done = run("warned")
    assert done.returncode == 0
    assert "in-place-on-static-input" in done.stdout and "verified:" in done.stdout


def test_nothing_captured(run):
    done = run("empty")
    assert done.returncode == 4
    assert "the graph is empty" in done.stderr


def test_quiet_says_nothing(run):
    done = run("wrong", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_quiet_still_writes_the_file(run, tmp_path):
    done = run("wrong", "--quiet", "-o", "report.txt")
    assert (done.returncode, done.stdout) == (1, "")
    assert "python-scalar-frozen" in (tmp_path / "report.txt").read_text()


def test_eager_that_never_repeats_itself_is_undecided(run):
    done = run("noisy")
    assert done.returncode == 5, done.stdout
    assert "cannot tell" in done.stdout


def test_the_screen():
    """The screen at 80 columns."""
    from io import StringIO

    from rich.console import Console

    from cgtool.model.capture import Entry, Environment
    from cgtool.model.finding import Comparison, Report
    from cgtool.render.report_table import render_verify

    report = Report(
        command="verify",
        entry=Entry(spec="m.py:build", kind="callable", file=None, line=None, callables=("m",)),
        environment=Environment(device="H200", torch="2.11", python="3.12"),
        created="", cgtool="",
        comparisons=(
            Comparison("output", "output", "fresh inputs 1", False, False, 0.5, 0.25, 0.0, 0.0),
            Comparison("w", "state", "fresh inputs 1", False, False, None, None, 0.0, 0.0),
            Comparison("a", "gradient", "fresh inputs 1", True, True, 0.0, 0.0, 0.0, 0.0),
            Comparison("b", "gradient", "fresh inputs 1", True, False, 1e-6, 1e-7, 2e-6, 1e-6),
        ),
    )  # fmt: skip
    buffer = StringIO()
    Console(file=buffer, width=80, color_system=None, highlight=False).print(render_verify(report))
    lines = [line.rstrip() for line in buffer.getvalue().splitlines()]
    assert "Replay compared with eager, m.py:build" in lines[0]
    assert [line.split() for line in lines[3:6]] == [
        ["output", "fresh", "inputs", "1", "differs", "0.5", "25.00%", "0"],
        ["w", "fresh", "inputs", "1", "differs", "not", "a", "number", "0"],
        ["2", "gradients", "fresh", "inputs", "1", "equal", "1e-06", "1e-06"],
    ]
    assert "not verified: 2 of 4 comparisons differ" in lines
