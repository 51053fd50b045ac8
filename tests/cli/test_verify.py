"""`cgtool verify` end to end on the simulated device."""

from __future__ import annotations

import json

import pytest

from cgtool.cli.workers import with_cause
from cgtool.model.capture import Frame
from cgtool.model.failure import Failure
from cgtool.model.finding import Finding
from cgtool.recapture import experiment
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

def uncaptured_twice(device):
    def f(x):
        y = x * x.sum().item()
        return y[y > 0]
    return f, (torch.ones(4, device=device),)

def warned(device):
    return lambda x: x.mul_(2), (torch.ones(4, device=device),)

def noisy(device):
    hidden = torch.futures.Future()
    hidden.set_result(torch.Generator(device).manual_seed(1))
    def draw(x):
        return x + torch.randn(x.shape, generator=hidden.value(), device=x.device)
    return draw, (torch.ones(4, device=device),)

def silent(device):
    return lambda x: 3 if x.mul(2) is None else 4, (torch.ones(4, device=device),)

def toggles_its_mode(device):
    dropout = torch.nn.Dropout(0.5)
    def drop(x):
        dropout.train(not dropout.training)
        return dropout(x) * 2
    return drop, (torch.ones(64, device=device),)

def empty(device):
    return lambda x: x, (torch.ones(4, device=device),)

def view(device):
    return lambda x: x.view(-1), (torch.ones(2, 3, device=device),)

def unsafe_split(device):
    x = torch.ones(6, device=device, requires_grad=True)
    def step():
        left, right = torch.unsafe_split(x, 3)
        return left, torch.autograd.grad(left * right, x, torch.ones_like(left))
    return step

def anomalies(device):
    x = torch.ones(6, device=device, requires_grad=True)
    def step():
        with torch.autograd.detect_anomaly():
            x.square().sum().backward()
        return x.grad
    return step

def not_a_number(device):
    x = torch.zeros(6, device=device, requires_grad=True)
    def step():
        with torch.autograd.detect_anomaly():
            (x.sqrt() * 0).sum().backward()
        return x.grad
    return step

def growing(device):
    sizes = itertools.count(1)
    return lambda x: x[: next(sizes)] * 2, (torch.ones(9, device=device),)
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


@pytest.mark.parametrize("name", ["view", "unsafe_split"])
def test_a_view_holds_what_its_base_holds(run, name):
    done = run(name)
    assert done.returncode == 0, done.stdout
    assert "bit-identical" in done.stdout


def test_a_mismatch_with_its_line_and_reason(run):
    done = run("wrong")
    assert done.returncode == 1
    assert "differs" in done.stdout and "python-scalar-frozen" in done.stdout
    assert "entry.py:11" in done.stdout and "return x * next(scales)" in done.stdout
    assert "not verified" in done.stdout


def test_a_mismatch_of_shapes(run):
    out = run("growing").stdout
    assert "shape [5], not [6]" in out and "not a number" not in out
    comparisons = json.loads(run("growing", "--format", "json").stdout)["comparisons"]
    assert {"shape [5], not [6]"} <= {each.get("mismatch") for each in comparisons}


@pytest.mark.fresh_worker
def test_pytorch_does_not_trace_a_refusal_as_an_error_of_the_code(run):
    done = run("anomalies")
    assert "nan-guard-sync" in done.stderr
    assert "Error detected in" not in done.stderr


@pytest.mark.fresh_worker
def test_pytorch_traces_an_error_of_the_code(tmp_path):
    (tmp_path / "entry.py").write_text(ENTRIES)
    done = run_cgtool("verify", "entry.py:not_a_number", "--device", "simulated", cwd=tmp_path)
    assert "Error detected in SqrtBackward0" in done.stderr
    assert "(x.sqrt() * 0)" in done.stderr


def test_a_mode_that_changes_with_every_call(run):
    done = run("toggles_its_mode")
    assert done.returncode == 1, done.stderr
    assert "control-flow-frozen" in done.stdout


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

    from cgtool.findings import code
    from cgtool.model.capture import Entry, Environment, Frame
    from cgtool.model.finding import Comparison, Finding, Report
    from cgtool.render.report_table import render_verify

    report = Report(
        command="verify",
        entry=Entry(spec="m.py:build", kind="callable", file=None, line=None, callables=("m",)),
        environment=Environment(device="H200", torch="2.11", python="3.12"),
        created="", cgtool="",
        comparisons=(
            Comparison("output", "output", "one", False, False, 0.5, 0.25, 0.0, 0.0),
            Comparison("output", "output", "two", False, False, 0.1, 1e-6, 0.0, 0.0),
            Comparison("w", "state", "one", False, False, None, None, 0.0, 0.0),
            Comparison("a", "gradient", "one", True, True, 0.0, 0.0, 0.0, 0.0),
            Comparison("b", "gradient", "one", True, True, 0.0, 0.0, 0.0, 0.0),
            Comparison("b", "gradient", "two", True, True, 0.0, 0.0, 0.0, 0.0),
            Comparison("a", "gradient", "two", True, False, 1e-6, 1e-7, 2e-6, 1e-6),
            Comparison("a", "gradient", "last", True, False, 1e-6, 1e-7, 9e-6, 0.0, 2e-6, 3e-6),
        ),
        findings=(
            Finding(code("python-scalar-frozen"), "the number changes", (Frame("m.py", 7, "f"),)),
        ),
    )  # fmt: skip
    buffer = StringIO()
    Console(file=buffer, width=80, color_system=None, highlight=False).print(render_verify(report))
    lines = [line.rstrip() for line in buffer.getvalue().splitlines()]
    head = " ".join(lines[: lines.index("")])
    assert head.startswith("not verified: 3 of 8 comparisons differ, because of: ")
    assert head.endswith(" (m.py:7)")
    assert "error[python-scalar-frozen]" in lines[lines.index("") + 1]
    start = lines.index("Replay compared with eager, m.py:build") + 3
    assert [line.split() for line in lines[start : start + 4]] == [
        ["output", "2", "of", "3", "differs", "0.5"],
        ["w", "one", "differs", "not", "a", "number"],
        ["a", "2", "of", "3", "equal", "1e-06", "2e-06", "3e-06", "9e-06"],
        ["2", "gradients", "2", "of", "3", "bit-identical", "0"],
    ]


def test_nothing_to_compare_is_no_answer(run):
    done = run("silent")
    assert done.returncode == 5, done.stdout
    assert "cannot tell: nothing was compared" in done.stdout


HERE = Frame("model.py", 7, "forward")
ELSEWHERE = Frame("loader.py", 3, "work")


@pytest.mark.parametrize(
    ("guess", "found", "code"),
    [
        (
            "sync-slice-with-tensor-bounds",
            (("sync-dynamic-shape-op", HERE),),
            "sync-dynamic-shape-op",
        ),
        ("sync-item", (("sync-dynamic-shape-op", HERE), ("sync-item", HERE)), "sync-item"),
        (
            "sync-item",
            (("explicit-synchronize", ELSEWHERE), ("sync-d2h-copy", HERE)),
            "sync-d2h-copy",
        ),
        ("finalizer-in-capture", (("explicit-synchronize", ELSEWHERE),), "explicit-synchronize"),
        ("finalizer-in-capture", (("control-flow-frozen", ELSEWHERE),), "finalizer-in-capture"),
    ],
)
def test_the_cause_is_the_one_that_a_dry_run_finds(guess, found, code):
    """What an error of CUDA means is guessed from the line; a dry run sees the call itself."""
    failure = Failure(
        "f raised AcceleratorError", 4, (HERE,), findings=(Finding(guess, "a guess", (HERE,)),)
    )
    findings = tuple(Finding(name, "a reason", (place,)) for name, place in found)
    caused = with_cause(failure, findings)
    assert caused.findings[0].code == code
    assert caused.frames == caused.findings[0].frames
    assert caused.why == ("a reason" if code != guess else failure.why)


def test_all_that_would_fail_is_listed(run):
    done = run("uncaptured_twice")
    assert done.returncode == 4
    assert "code: sync-item" in done.stderr
    assert "sync-dynamic-shape-op at" in done.stderr


REFUSED = """
import os
import torch
runs = os.open("runs", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def build(device):
    model = torch.nn.Linear(4, 4).to(device)
    x = torch.ones(2, 4, device=device)
    def step():
        os.write(runs, b".")
        loss = model(x).sum()
        loss.backward()
        return loss.item()
    return step
"""


@pytest.mark.parametrize(("command", "most"), [("check", 6), ("capture", 5), ("verify", 6)])
def test_a_slow_step_that_is_refused_runs_a_few_times(cgtool, tmp_path, monkeypatch, command, most):
    """Three times as a warm-up, once to be refused, and once more for what else would be."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(experiment, "_SECONDS_OF_WALK", 0.0)  # each run takes longer
    (tmp_path / "model.py").write_text(REFUSED)
    _, out, err = cgtool(command, "model.py:build", "--device", "simulated")
    assert "sync-item" in out + err
    assert len((tmp_path / "runs").read_text()) <= most


def test_layers_that_a_call_leaves_out_are_explained_by_the_branch(tmp_path):
    file = tmp_path / "model.py"
    file.write_text(
        "import random\nimport torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(30))\n\n"
        "    def forward(self, x):\n        for layer in self.layers:\n"
        "            if random.random() < 0.5:\n                continue\n"
        "            x = x + layer(x)\n        return x\n\n\ndef build(device):\n"
        "    return Net().to(device), (torch.randn(2, 4, device=device),)\n"
    )
    result = run_cgtool("verify", f"{file}:build", "--device", "simulated", cwd=tmp_path)
    assert result.returncode == 4
    assert "give no gradient to layers." in result.stderr
    assert "model.py:15 in Net.forward" in result.stderr
    assert "rng-frozen-seed" in result.stderr
