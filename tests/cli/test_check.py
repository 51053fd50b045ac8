"""`cgtool check` and `explain` through the command line, on the simulated device."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console

from cgtool.findings import codes, page
from cgtool.render.report_table import render_page
from tests.forked_workers import run_cgtool, run_fresh_cgtool


def cgtool(*arguments, cwd):
    return run_cgtool(*arguments, cwd=cwd, timeout=300)


def check(tmp_path, source, *arguments, target="model.py:build"):
    (tmp_path / "model.py").write_text(source)
    done = cgtool("check", "--device", "simulated", *arguments, target, cwd=tmp_path)
    assert "/cgtool/" not in done.stderr, done.stderr
    return done


def unwrapped(text):
    """Without the line breaks that the width of the terminal asks for."""
    return " ".join(text.split())


MANY = """\
import torch
def f(x):
    y = x / x.max().item()
    if y.sum() > 0:
        y = y + torch.tensor([1.0], device=x.device)
    return y.cpu()
def build(device):
    return f, (torch.ones(4, 4, device=device),)
"""


def test_one_run_shows_every_hazard_with_its_line(tmp_path):
    done = check(tmp_path, MANY, "--format", "json")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert report["schema"] == "cgtool-check"
    places = [(finding["code"], finding["line"]) for finding in report["findings"]]
    first = report["findings"][0]
    assert first["severity"] == "error"
    assert first["title"] == "tensor value read on the host"
    assert first["file"] == first["frames"][0][0]
    assert first["fix"]
    assert places == [
        ("sync-item", 3),
        ("sync-truth-value", 4),
        ("h2d-tensor-from-python", 5),
        ("sync-d2h-copy", 6),
    ]


SEEDED = """\
import random, sys
def build(device):
    import torch
    random.random()
    def f(x):
        sys.stderr.write(f"drew {random.random()}\\n")
        return x * 2
    return f, (torch.ones(4, device=device),)
"""


def test_the_first_iteration_begins_at_the_seed(tmp_path):
    done = check(tmp_path, SEEDED, "--seed", "5")
    assert f"drew {random.Random(5).random()}\n" in done.stderr.partition("\n")[0] + "\n"


REFUSED = """\
import itertools, math, torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.spare = nn.Linear(4, 4), nn.Linear(4, 4)
    def forward(self, x):
        y = self.used(x)
        return y / y.max().item()
def unused(device):
    return Net().to(device), (torch.ones(2, 4, device=device),)
def closure(device):
    weight = nn.Parameter(torch.ones(4, device=device))
    def f(x):
        y = x * weight
        return y / y.max().item()
    return f, (torch.ones(2, 4, device=device),)
def hidden(device):
    weights = itertools.repeat(nn.Parameter(torch.ones(4, device=device)))
    def f(x):
        y = x * next(weights)
        return y / y.max().item()
    return f, (torch.ones(2, 4, device=device),)
def step_of(optimizer, model, x):
    def step():
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss / loss.item()
    return step
def adamw(device):
    model = nn.Linear(4, 4).to(device)
    return step_of(torch.optim.AdamW(model.parameters()), model, torch.ones(2, 4, device=device))
def adafactor(device):
    model = nn.Linear(4, 4).to(device)
    optimizer = torch.optim.Adafactor(model.parameters())
    return step_of(optimizer, model, torch.ones(2, 4, device=device))
def host(device):
    def f(x, y):
        z = x * y.sum().item()
        return z / z.max().item()
    return f, (torch.ones(2, 4, device=device), torch.ones(4))
def empty(device):
    return lambda x: x, (torch.ones(4, device=device),)
class Kiln(nn.Module):
    def __init__(self):
        super().__init__()
        self.emissivity, self.ramp = nn.Parameter(torch.tensor(-0.3)), nn.Linear(4, 4)
    def forward(self, x):
        return self.ramp(x) * self.factor()
    def factor(self):
        return math.exp(self.emissivity * 2)
class Listed(Kiln):
    def factor(self):
        return self.emissivity.tolist()
def read(device):
    return Kiln().to(device), (torch.ones(2, 4, device=device),)
def listed(device):
    return Listed().to(device), (torch.ones(2, 4, device=device),)
"""


@pytest.mark.parametrize(
    ("name", "own", "line"),
    [
        ("unused", ("unused-input", 10), 9),
        ("closure", None, 16),
        ("hidden", ("no-differentiable-params", 18), 22),
        ("adamw", ("optimizer-not-capturable", 28), 29),
        ("adafactor", ("optimizer-adafactor-keyerror", 28), 29),
        ("host", ("cpu-work-in-region", 38), 41),
        ("empty", ("empty-graph", 43), None),
    ],
)
def test_a_refusal_of_the_entry_is_a_finding_and_the_rest_is_checked(tmp_path, name, own, line):
    done = check(tmp_path, REFUSED, "--format", "json", target=f"model.py:{name}")
    assert done.returncode == 1, done.stderr
    places = [
        (finding["code"], finding["frames"][0][1])
        for finding in json.loads(done.stdout)["findings"]
    ]
    assert own is None or own in places
    assert line is None or ("sync-item", line) in places
    if own is None:
        assert len(places) == 1


@pytest.mark.parametrize(
    ("name", "line", "reason"),
    [("read", 52, "`torch.exp`"), ("listed", 55, "tolist")],
)
def test_a_parameter_whose_value_is_read_on_the_host_is_not_unused(tmp_path, name, line, reason):
    done = check(tmp_path, REFUSED, "--format", "json", target=f"model.py:{name}")
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["frames"][0][1] == line
    done = cgtool("verify", f"model.py:{name}", "--device", "simulated", cwd=tmp_path)
    assert (done.returncode, "unused" in done.stderr) == (4, False), done.stderr
    assert reason in done.stderr


@pytest.mark.parametrize("result", ["x.t()", "x[:0] * 2"])
def test_nothing_to_launch_is_a_note(tmp_path, result):
    source = (
        f"import torch\ndef build(device):\n"
        f"    return lambda x: {result}, (torch.ones(2, 3, device=device),)\n"
    )
    done = check(tmp_path, source)
    assert (done.returncode, "no findings" in done.stdout) == (0, True), done.stdout
    assert "note: forward has nothing to launch: its graph is empty" in done.stdout


COMPILED = """\
import torch
from torch import nn
@torch.compile
def f(x):
    return x.sin()
def function(device):
    return lambda x: f(x) * 2, (torch.ones(4, device=device),)
def inner(device):
    net = nn.Sequential(torch.compile(nn.Linear(4, 4).to(device)))
    return net, (torch.ones(4, device=device),)
def method(device):
    net = nn.Linear(4, 4).to(device)
    net.compile(mode="max-autotune")
    return net, (torch.ones(4, device=device),)
def before(device):
    return lambda x: x * 2, (f(torch.ones(4, device=device)),)
"""
SCRIPT = f"""{COMPILED}
x = torch.ones(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = f(x)
graph.replay()
"""
EAGERLY = "code under torch.compile runs eagerly"


@pytest.mark.parametrize(
    ("name", "says_so"), [("function", 1), ("inner", 1), ("method", 1), ("before", 0)]
)
def test_compiled_code_in_a_capture_is_said_to_run_eagerly(tmp_path, name, says_so):
    out = check(tmp_path, COMPILED, target=f"model.py:{name}").stdout
    assert unwrapped(out).count(EAGERLY) == says_so


def test_every_table_says_that_compiled_code_ran_eagerly(tmp_path):
    assert EAGERLY in unwrapped(check(tmp_path, SCRIPT, target="model.py").stdout)
    calls = f"{COMPILED}f(torch.ones(4, device='cuda'))\n"
    without_capture = check(tmp_path, calls, target="model.py")
    assert without_capture.returncode == 5
    assert EAGERLY in unwrapped(without_capture.stderr)
    for arguments in (
        ("capture", "model.py:function", "--device", "simulated", "-o", "f.cgt"),
        ("verify", "model.py:function", "--device", "simulated"),
        ("pools", "f.cgt"),
        ("dump", "f.cgt", "--dot"),
        ("diff", "f.cgt", "f.cgt"),
        ("gate", "f.cgt", "--max-nodes", "9"),
    ):
        done = cgtool(*arguments, cwd=tmp_path)
        assert done.returncode == 0, (arguments, done.stderr)
        assert unwrapped(done.stdout).count(EAGERLY) == 1, arguments


COMPILED_DIFFERENTLY = """\
import torch
from torch.distributions import Normal
@torch.compile
def f(x):
    x = Normal(x, torch.tensor([0.1, 1.0], device=x.device)).rsample() * x.new_tensor(2.0)
    return x + x.new_tensor(data=1, device=x.device)
x = torch.zeros(2, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = f(x)
graph.replay()
"""


def test_what_a_compiler_changes_is_no_finding(tmp_path):
    # torch.compile switches the checks of distributions off, and numbers become constants.
    done = check(tmp_path, COMPILED_DIFFERENTLY, target="model.py")
    assert (done.returncode, "no findings" in done.stdout) == (0, True), done.stdout
    eagerly = check(
        tmp_path, COMPILED_DIFFERENTLY.replace("@torch.compile\n", ""), target="model.py"
    )
    assert "h2d-tensor-from-python" in eagerly.stdout
    disabled = COMPILED_DIFFERENTLY.replace("compile", "compile(disable=True)", 1)
    assert "h2d-tensor-from-python" in check(tmp_path, disabled, target="model.py").stdout


EXTERNAL_EVENTS = """\
import torch
x, y = (torch.zeros(8, device="cuda") for _ in range(2))
out = torch.zeros(8, pin_memory=True)
ready, done = (torch.cuda.Event(external=True) for _ in range(2))
def step():
    ready.wait()
    y.copy_(x * 2)
    out.copy_(y, non_blocking=True)
    done.record()
side = torch.cuda.Stream()
ready.record(side)
step()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
for number in range(4):
    with torch.cuda.stream(side):
        x.fill_(number)
        ready.record()
    graph.replay()
    done.synchronize()
    assert out[0] == 2 * number
"""


@pytest.mark.parametrize(
    ("without", "found"),
    [
        ("X", 0),
        ("        ready.record()\n", 1),
        ("    done.synchronize()\n", 2),
        ("    done.record()\n", 2),
        ("    ready.wait()\n", 1),
    ],
)
def test_external_events_order_each_replay(tmp_path, without, found):
    done = check(
        tmp_path, EXTERNAL_EVENTS.replace(without, ""), "--format", "json", target="model.py"
    )
    codes = [finding["code"] for finding in json.loads(done.stdout)["findings"]]
    assert codes == ["unsynchronized-io"] * found, done.stdout


LOOP = """\
import functools, torch
x, out = torch.zeros(4, device="cuda"), torch.zeros(2, 4, device="cuda")
def write(value):
    out[0].copy_(x * value)
def clear(part):
    part.zero_()
works = [functools.partial(write, number) for number in range(LENGTH)]
works += [functools.partial(clear, out[number]) for number in range(2)]
graphs = []
for work in works:
    work()
    graphs.append(torch.cuda.CUDAGraph())
    with torch.cuda.graph(graphs[-1]):
        work()
for number in range(8):
    x.fill_(number)
    graphs[-3].replay()
"""


@pytest.mark.parametrize("length", [2, 4])
def test_a_name_of_a_loop_over_captures_has_the_value_of_its_capture(tmp_path, length):
    # Only the first four graphs of a line are looked at.
    done = check(tmp_path, LOOP.replace("LENGTH", f"{length}"), target="model.py")
    assert (done.returncode, "no findings" in done.stdout) == (0, True), done.stdout


ACTOR_AND_CRITIC = """\
import torch
actor, critic = (torch.ones(2, device="cuda", requires_grad=True) for _ in range(2))
optimizers = [torch.optim.SGD([w], lr=0.1) for w in (critic, actor)]
losses = lambda: critic.square().sum(), lambda: (actor * critic).sum()
graphs = [torch.cuda.CUDAGraph() for _ in losses]
for graph, loss, optimizer in zip(graphs, losses, optimizers):
    optimizer.zero_grad()
    with torch.cuda.graph(graph):
        loss().backward()
for _ in range(4):
    for graph, optimizer in zip(graphs, optimizers):
        graph.replay()
        optimizer.step()
"""


def test_what_another_replay_overwrites_does_not_add_up(tmp_path):
    # The backward of the actor adds to gradients that the next replay of the critic overwrites.
    done = check(tmp_path, ACTOR_AND_CRITIC, target="model.py")
    assert (done.returncode, "no findings" in done.stdout) == (0, True), done.stdout
    keeps = "critic.grad = torch.zeros_like(critic)\nfor graph, loss"
    adds = ACTOR_AND_CRITIC.replace("    optimizer.zero_grad()\n", "")
    done = check(tmp_path, adds.replace("for graph, loss", keeps), target="model.py")
    assert "gradient-accumulation-mismatch" in done.stdout


def test_an_optimizer_that_has_no_option_is_not_told_to_set_it(tmp_path):
    done = check(tmp_path, REFUSED, "--format", "json", target="model.py:adafactor")
    fixes = [
        finding["fix"]
        for finding in json.loads(done.stdout)["findings"]
        if finding["code"].startswith("optimizer-")
    ]
    assert len(fixes) == 2
    assert all("AdamW" in fix for fix in fixes)


def test_quiet_still_writes_the_file(tmp_path):
    done = check(tmp_path, MANY, "-q", "-o", "report.txt")
    assert (done.returncode, done.stdout) == (1, "")
    assert "sync-item" in (tmp_path / "report.txt").read_text()


def test_the_table_shows_the_source_and_the_fix(tmp_path):
    done = check(tmp_path, MANY)
    assert "simulated" in done.stdout
    assert "y = x / x.max().item()" in done.stdout
    assert "4 errors" in done.stdout
    assert page("sync-item").head.title in done.stdout


def test_sarif_names_rules_and_lines(tmp_path):
    target = tmp_path / "out.sarif"
    done = check(tmp_path, MANY, "--format", "sarif", "-o", target)
    assert done.returncode == 1
    assert done.stdout == ""
    log = json.loads(target.read_text())
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert log["version"] == "2.1.0"
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"] == {"uri": "model.py", "uriBaseId": "%SRCROOT%"}
    lines = [
        result["locations"][0]["physicalLocation"]["region"]["startLine"]
        for result in run["results"]
    ]
    assert lines == [3, 4, 5, 6]


def test_innocent_code_exits_0(tmp_path):
    source = (
        "import torch\n"
        "def build(device):\n"
        "    return torch.nn.Linear(4, 4).to(device), (torch.ones(2, 4, device=device),)\n"
    )
    done = check(tmp_path, source)
    assert done.returncode == 0, done.stdout
    assert "no findings" in done.stdout


ODD = {
    "a lambda": (
        "import torch\n"
        "def build(device):\n"
        "    return (lambda x: x / x.max().item()), (torch.ones(4, device=device),)\n",
        ("sync-item", 3),
    ),
    "generated code": (
        "import torch\n"
        "space = {}\n"
        "exec('def f(x):\\n    return x / x.max().item()\\n', space)\n"
        "def call(x):\n"
        "    return space['f'](x)\n"
        "def build(device):\n"
        "    return call, (torch.ones(4, device=device),)\n",
        ("sync-item", 5),
    ),
    "compiled code": (
        "import torch\n"
        "@torch.compile\n"
        "def f(x):\n"
        "    return x / x.max().item()\n"
        "def build(device):\n"
        "    return f, (torch.ones(4, device=device),)\n",
        ("sync-item", 4),
    ),
    "a finalizer that raises": (
        "import torch\n"
        "class Odd:\n"
        "    def __del__(self):\n"
        "        raise RuntimeError('from a finalizer')\n"
        "def f(x):\n"
        "    Odd()\n"
        "    return x / x.max().item()\n"
        "def build(device):\n"
        "    return f, (torch.ones(4, device=device),)\n",
        ("sync-item", 7),
    ),
    "a thread and a print": (
        "import threading, torch\n"
        "def f(x):\n"
        "    one = threading.Thread(target=print, args=('from a thread',))\n"
        "    one.start(); one.join()\n"
        "    return x / x.max().item()\n"
        "def build(device):\n"
        "    return f, (torch.ones(4, device=device),)\n",
        ("sync-item", 5),
    ),
    "a library's own sync": (
        "import torch\n"
        "def f(x):\n"
        "    return torch.distributions.Normal(x, 1.0).rsample()\n"
        "def build(device):\n"
        "    return f, (torch.ones(4, device=device),)\n",
        ("hidden-sync-in-stock-module", 3),
    ),
    "backward": (
        "import torch\n"
        "class Peek(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x):\n"
        "        return x * 2\n"
        "    @staticmethod\n"
        "    def backward(ctx, grad):\n"
        "        return grad / grad.max().item()\n"
        "def f(x):\n"
        "    return Peek.apply(x)\n"
        "def build(device):\n"
        "    return f, (torch.ones(4, device=device, requires_grad=True),)\n",
        ("sync-item", 8),
    ),
}


@pytest.mark.parametrize("case", ODD)
def test_the_line_is_one_that_the_user_can_edit(case, tmp_path):
    source, expected = ODD[case]
    done = check(tmp_path, source, "--format", "json")
    assert done.returncode == 1, done.stderr
    findings = json.loads(done.stdout)["findings"]
    assert expected in [(finding["code"], finding["frames"][0][1]) for finding in findings]


def test_code_that_fails_in_eager_mode_is_a_failure_not_a_hazard(tmp_path):
    source = (
        "import torch\n"
        "def f(x):\n"
        "    return x @ torch.ones(3, 3, device=x.device)\n"
        "def build(device):\n"
        "    return f, (torch.ones(4, 8, device=device),)\n"
    )
    done = check(tmp_path, source)
    assert done.returncode == 4
    assert "model.py:3" in done.stderr


@pytest.mark.parametrize("given", [(), ("--",)])
def test_what_follows_a_script_is_passed_to_it_and_its_graphs_are_watched(tmp_path, given):
    source = (
        "import argparse, torch\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--format', type=int)\n"
        "x = torch.ones(parser.parse_args().format, device='cuda')\n"
        "graph = torch.cuda.CUDAGraph()\n"
        "with torch.cuda.graph(graph):\n"
        "    y = x / x.max().item()\n"
    )
    (tmp_path / "script.py").write_text(source)
    options = ("--device", "simulated", "--no-annotations", "--format", "json")
    done = cgtool("check", *options, "script.py", *given, "--format", "4", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert report["entry"]["kind"] == "script"
    assert ("sync-item", 7) in [
        (finding["code"], finding["frames"][0][1]) for finding in report["findings"]
    ]
    after = cgtool("check", *options, "--", "script.py", *given, "--format", "4", cwd=tmp_path)
    assert after.returncode == 1, after.stderr
    assert json.loads(after.stdout)["findings"] == report["findings"]
    wrong = cgtool("check", *options, "script.py", "--device", "simulated", cwd=tmp_path)
    assert wrong.returncode == 4
    assert "options of cgtool come before it: `cgtool check OPTIONS script.py ARGS`" in wrong.stderr


def test_options_of_check_may_follow_an_entry(tmp_path):
    (tmp_path / "model.py").write_text(
        "import sys, torch\n"
        "def build(device):\n"
        "    print('given', sys.argv[1:])\n"
        "    return torch.neg, (torch.ones(4, device=device),)\n"
    )
    given = ("--device", "simulated", "--format", "json", "--", "--steps", "3")
    done = cgtool("check", "model.py:build", *given, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["entry"]["kind"] == "callable"
    assert "given ['--steps', '3']" in done.stderr


def test_a_script_that_raises_shows_what_was_found_before(tmp_path):
    source = (
        "import torch\n"
        "x = torch.ones(4, device='cuda')\n"
        "graph = torch.cuda.CUDAGraph()\n"
        "with torch.cuda.graph(graph):\n"
        "    y = x * 2\n"
        "x = torch.zeros(4, device='cuda')\n"
        "graph.replay()\n"
        "raise ValueError('of its own')\n"
    )
    (tmp_path / "script.py").write_text(source)
    done = cgtool("check", "--device", "simulated", "script.py", cwd=tmp_path)
    assert done.returncode == 4
    shown = " ".join(done.stderr.split())
    assert "found before that: error" in shown
    assert "script.py:6 x = torch.zeros(4, device='cuda')" in shown
    assert "dry run" not in shown


STARTED = """\
import pathlib, time, torch
x = torch.ones(4, device='cuda')
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
x = torch.zeros(4, device='cuda')
graph.replay()
pathlib.Path('started').touch()
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (STARTED, True),
        (
            STARTED.replace("time.sleep(60)", "try: time.sleep(60)\nexcept KeyboardInterrupt: 1/0"),
            1,
        ),
        (STARTED.partition("graph =")[0] + STARTED[STARTED.index("pathlib.P") :], False),
    ],
)
def test_ctrl_c_ends_a_script_and_shows_what_was_found(tmp_path, source, found):
    (tmp_path / "script.py").write_text(source)
    command = ["check", "--device", "simulated", "--format", "json", "script.py"]
    process = subprocess.Popen(
        [sys.executable, "-m", "cgtool", *command],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not (tmp_path / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in error) == (130, False), error
    report = json.loads(out)
    if found is True:
        assert [each["line"] for each in report["findings"] if each["severity"] == "error"] == [6]
        assert report["interrupted"]
        assert any("interrupted at script.py:9" in each for each in report["looked_at"])
    elif found:
        assert [each["line"] for each in report["error"]["findings"]] == [6]
        assert "ZeroDivisionError" in report["error"]["message"]
    else:
        assert "captured no CUDA graph" in report["error"]["message"]


def test_a_failed_capture_names_what_else_would_fail(tmp_path):
    (tmp_path / "model.py").write_text(MANY)
    done = cgtool("capture", "model.py:build", "--device", "simulated", cwd=tmp_path)
    assert done.returncode == 4
    assert "code: sync-item" in done.stderr
    for code in ("sync-truth-value", "h2d-tensor-from-python", "sync-d2h-copy"):
        assert code in done.stderr


def test_a_refusal_in_a_formula_of_backward_is_at_its_forward_line(tmp_path):
    (tmp_path / "model.py").write_text(
        "import torch\n"
        "def f(x):\n"
        "    return x.prod()\n"
        "def build(device):\n"
        "    return f, (torch.ones(4, device=device, requires_grad=True),)\n"
    )
    # The frames of a forked worker would count as the user's.
    done = run_fresh_cgtool("capture", "model.py:build", "--device", "simulated", cwd=tmp_path)
    assert done.returncode == 4
    assert "model.py:3 in f" in done.stderr
    assert "and 1 more" not in done.stderr


def test_explain(tmp_path):
    shown = cgtool("explain", "sync-item", cwd=tmp_path)
    assert shown.returncode == 0
    assert page("sync-item").head.title in shown.stdout
    example = cgtool("explain", "sync-item", "--example", "wrong", cwd=tmp_path)
    assert example.stdout == page("sync-item").examples["wrong"]
    listed = cgtool("explain", cwd=tmp_path)
    assert all(code in listed.stdout for code in codes())
    as_csv = cgtool("explain", "--format", "csv", cwd=tmp_path).stdout.splitlines()
    assert as_csv[0] == "category,code,what is wrong"
    assert sorted(line.split(",")[1] for line in as_csv[1:]) == sorted(codes())
    as_json = cgtool("explain", "sync-item", "--format", "json", cwd=tmp_path).stdout
    assert json.loads(as_json)["head"]["title"] == page("sync-item").head.title
    assert cgtool("explain", "sync-item", "--format", "csv", cwd=tmp_path).returncode == 2
    wrong = cgtool("explain", "sync-itm", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "sync-item" in wrong.stderr


@pytest.mark.parametrize("code", codes())
def test_no_word_of_a_page_is_cut_off_in_a_pipe(code):
    into = Console(width=100, file=io.StringIO(), soft_wrap=True, highlight=False)
    into.print(render_page(page(code)))
    text = re.sub(r"\]\([^)]*\)|```\w*", "", page(code).text)  # targets of links, languages
    assert set(re.findall(r"\w+", text)) <= set(re.findall(r"\w+", into.file.getvalue()))


IMPORTS = "import torch\nfrom torch.nn.functional import dropout\n"
RATE = """\
def build(device):
    calls, x = [0], torch.ones(4, 8, device=device)
    def step():
        calls[0] += 1
        return dropout(x, min(0.9, 0.01 * calls[0]))
    return step
"""
RATE_AS_FIXED = """\
def build(device):
    rate, x = torch.zeros((), device=device), torch.ones(4, 8, device=device)
    def step():
        rate.add_(0.01).clamp_(max=0.9)
        return x * (torch.rand_like(x) < 1 - rate) / (1 - rate)
    return step
"""
POSITION = """\
def build(device):
    at, queue, x = [0], torch.zeros(32, 8, device=device), torch.ones(4, 8, device=device)
    def step():
        queue[at[0] : at[0] + 4] = x
        at[0] = (at[0] + 4) % 32
        return queue * 1
    return step
"""
POSITION_AS_FIXED = """\
def build(device):
    at, queue = torch.arange(4, device=device), torch.zeros(32, 8, device=device)
    x = torch.ones(4, 8, device=device)
    def step():
        queue.index_copy_(0, at, x)
        at.add_(4).remainder_(32)
        return queue * 1
    return step
"""
FLAG = """\
def build(device):
    calls, x = [0], torch.ones(4, 8, device=device)
    def step():
        calls[0] += 1
        return x.sum(0, keepdim=calls[0] % 2 == 0) * 1
    return step
"""
FLAG_AS_FIXED = """\
def build(device):
    x = torch.ones(4, 8, device=device)
    def step():
        return x.sum(0, keepdim=True) * 1
    return step
"""
LENGTH = """\
def build(device):
    calls, x = [0], torch.ones(4, 8, device=device)
    def step():
        calls[0] += 1
        return x * torch.arange(calls[0], device=device).sum()
    return step
"""
LENGTH_AS_FIXED = """\
def build(device):
    length, x = torch.zeros((), device=device), torch.ones(4, 8, device=device)
    def step():
        length.add_(1)
        positions = torch.arange(64, device=device)
        return x * (positions * (positions < length)).sum()
    return step
"""
SCHEDULED = """\
def build(device):
    model, x = torch.nn.Linear(8, 8).to(device), torch.ones(4, 8, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    def step():
        optimizer.zero_grad(set_to_none=False)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss
    return step
"""
SCHEDULED_AS_FIXED = SCHEDULED.replace(
    "lr=0.1", "lr=torch.tensor(0.1, device=device), fused=True"
).replace("        scheduler.step()\n", "")


OPTIMIZERS = """\
def trains(device, kind, scheduler=None, **options):
    model, x = torch.nn.Linear(8, 8).to(device), torch.ones(4, 8, device=device)
    optimizer = kind(model.parameters(), lr=0.1, **options)
    scheduler = scheduler and scheduler(optimizer)
    def step():
        optimizer.zero_grad(set_to_none=False)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        if scheduler:
            scheduler.step(loss.detach())
        return loss
    return step

def adam(device):
    return trains(device, torch.optim.Adam)
def fused(device):
    return trains(device, torch.optim.Adam, fused=True)
def sgd(device):
    return trains(device, torch.optim.SGD)
def scheduled(device):
    return trains(device, torch.optim.AdamW, lambda o: torch.optim.lr_scheduler.StepLR(o, 2))
def plateau(device):
    return trains(device, torch.optim.SGD, torch.optim.lr_scheduler.ReduceLROnPlateau)
"""


@pytest.mark.parametrize(
    ("name", "code", "reason"),
    [
        ("adam", "optimizer-not-capturable", "`capturable=True` and keeps `step` on the host, and"),
        ("fused", "optimizer-not-capturable", "without `capturable=True`, and its `step` refuses"),
        ("sgd", "optimizer-without-capture-guard", "the learning rate of `SGD` is a Python number"),
        ("scheduled", "optimizer-not-capturable", "`AdamW` was constructed without"),
        ("plateau", "hidden-sync-in-stock-module", "the scheduler, which reads the loss"),
        ("plateau", "optimizer-without-capture-guard", "the learning rate of `SGD` is a Python"),
    ],
)
def test_what_is_said_of_an_optimizer_is_true_of_it(tmp_path, name, code, reason):
    done = check(tmp_path, IMPORTS + OPTIMIZERS, "--format", "json", target=f"model.py:{name}")
    reasons = {each["code"]: each["reason"] for each in json.loads(done.stdout)["findings"]}
    assert reason in reasons[code]


POOL = """\
import concurrent.futures

class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))
        self.workers = concurrent.futures.ThreadPoolExecutor(4)

    @torch.no_grad()
    def forward(self, x):
        def run(expert):
            return expert(x)
        return sum(self.workers.map(run, self.experts))

def build(device):
    return Experts().to(device), (torch.ones(2, 8, device=device),)
"""
POOL_AS_FIXED = POOL.replace(
    "        def run(expert):\n            return expert(x)\n",
    "        stream = torch.cuda.current_stream()\n        def run(expert):\n"
    "            with torch.cuda.stream(stream):\n                return expert(x)\n",
)


@pytest.mark.parametrize(
    ("wrong", "code", "advice", "right"),
    [
        (RATE, "cpu-state-step-counter", "`torch.rand_like(x) < keep`", RATE_AS_FIXED),
        (POSITION, "cpu-state-step-counter", "`index_copy_`", POSITION_AS_FIXED),
        (FLAG, "cpu-state-step-counter", "takes no tensor for a flag", FLAG_AS_FIXED),
        (LENGTH, "cpu-state-step-counter", "`torch.arange(n) < length`", LENGTH_AS_FIXED),
        (SCHEDULED, "optimizer-without-capture-guard", "fused=True); what", SCHEDULED_AS_FIXED),
        (POOL, "kernel-on-stream-zero", "`with torch.cuda.stream(stream):`", POOL_AS_FIXED),
    ],
    ids=["rate", "position", "flag", "length", "scheduler", "pool"],
)
def test_a_fix_holds_when_it_is_typed_in(tmp_path, wrong, code, advice, right):
    before = check(tmp_path, IMPORTS + wrong, "--format", "json")
    [finding] = json.loads(before.stdout)["findings"]
    assert finding["code"] == code
    assert advice in finding["fix"]
    after = check(tmp_path, IMPORTS + right)
    assert after.returncode == 0, after.stdout


QUOTIENT = """\
def build(device):
    calls, x = [0], torch.ones(4, 8, device=device)
    def step():
        calls[0] += 1
        return x / calls[0], x.clamp(max=0.01 * calls[0])
    return step
"""


def test_the_fix_is_that_of_the_page_where_a_tensor_can_take_the_place_of_a_number(tmp_path):
    report = json.loads(check(tmp_path, IMPORTS + QUOTIENT, "--format", "json").stdout)
    assert {finding["fix"] for finding in report["findings"]} == {
        page("cpu-state-step-counter").head.fix
    }


def test_a_counter_names_the_line_that_uses_it(tmp_path):
    report = json.loads(check(tmp_path, IMPORTS + POSITION, "--format", "json").stdout)
    [finding] = report["findings"]
    lines = (IMPORTS + POSITION).splitlines()
    used = next(number for number, line in enumerate(lines, 1) if "queue[" in line)
    assert finding["line"] == used


GROWS = """\
class Cache(torch.nn.Module):
    past = None
    def forward(self, x):
        self.past = x if self.past is None else torch.cat([self.past, x], 1)
        return torch.nn.functional.scaled_dot_product_attention(x, self.past, self.past) * 1

def build(device):
    return Cache(), (torch.ones(2, 1, 8, device=device),)
"""


def test_sizes_that_follow_from_a_tensor_that_grows_are_no_numbers_of_the_user(tmp_path):
    report = json.loads(check(tmp_path, IMPORTS + GROWS, "--format", "json").stdout)
    assert "metadata-address-changed" in {finding["code"] for finding in report["findings"]}
    assert "python-scalar-frozen" not in {finding["code"] for finding in report["findings"]}


GENERATOR = """\
import torch
def build(device):
    generator = torch.Generator(device)
    def f(x):
        return x + torch.randn(x.shape, device=x.device, generator=generator)
    return f, (torch.ones(4, device=device),)
"""


@pytest.mark.parametrize("command", ["check", "verify"])
def test_generators_that_cgtool_registers_are_named(tmp_path, command):
    (tmp_path / "model.py").write_text(GENERATOR)
    done = cgtool(command, "model.py:build", "--device", "simulated", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = unwrapped(done.stdout + done.stderr)
    assert "has to do by register_generator_state(): generator" in said


def test_what_a_script_prints_is_alone_in_its_line_of_a_terminal(tmp_path):
    """Behind the name of a phase it would be hard to read."""
    (tmp_path / "script.py").write_text("print('hello from the script')\n")
    command = [sys.executable, "-m", "cgtool", "check", "--device", "simulated", "script.py"]
    own, terminal = os.openpty()
    process = subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, cwd=tmp_path
    )
    os.close(terminal)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while part := os.read(own, 1 << 16):
            shown += part
    os.close(own)
    assert process.wait(300) == 5, shown
    assert b"import torch" in shown
    assert b"hello from the script" in shown
    assert b"run the script" not in shown


IN_PIECES = """\
import torch
x, middle = (torch.ones(4, device="cuda") for _ in range(2))
pieces = []
def capture(function):
    function()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    pieces.append(graph.replay)
    return result
doubled = capture(lambda: x * 2)
def between():
    middle.copy_(doubled.cumsum(0))
between()
pieces.append(between)
out = capture(lambda: middle + 1)
for step in range(3):
    x.fill_(step)
    for piece in pieces:
        piece()
    print(out.tolist())
"""


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (("", ""), []),
        # Nothing computes it anew; the host reads it; another replay does; it is an output.
        (("pieces.append(between)\n", ""), ["capture-does-not-execute"]),
        (("between()\npieces", "between()\nprint(middle)\npieces"), ["capture-does-not-execute"]),
        (("out = c", "pieces.insert(0, pieces.pop())\nout = c"), ["capture-does-not-execute"]),
        (("def between", "print(doubled)\ndef between"), ["capture-does-not-execute"]),
    ],
)
def test_eager_code_between_captured_pieces_may_run_before_they_do(tmp_path, change, found):
    done = check(tmp_path, IN_PIECES.replace(*change, 1), "--format", "json", target="model.py")
    codes = [finding["code"] for finding in json.loads(done.stdout)["findings"]]
    assert codes == found, done.stdout


READ_EARLY = """\
import torch
x = torch.ones(4, device="cuda")
rows, host = torch.zeros(2, 4, device="cuda"), torch.zeros(4, pin_memory=True)
x * 2
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
READ
for step in range(2):
    x.fill_(step)
    graph.replay()
    print(y.tolist())
"""


@pytest.mark.parametrize(
    ("read", "found"),
    [
        ("print(torch.equal(x, y))", 1),
        ("early = y.to('cpu', non_blocking=True)\nprint(early.tolist())", 1),
        ("host.copy_(y, non_blocking=True)\nprint(host.numpy())", 1),
        ("rows.add_(y)\nprint(rows.sum())", 1),
        ("rows.add_(y)\nrows.zero_()\nprint(rows.sum())", 0),
        # Other rows than the one that is read.
        ("rows[0].copy_(y)\nprint(rows[1])", 0),
        ("rows.index_copy_(0, torch.zeros_like(x[:1]).long(), y[None])\nprint(rows[1])", 0),
    ],
)
def test_an_output_that_no_replay_has_computed_is_followed_to_the_host(tmp_path, read, found):
    source = READ_EARLY.replace("READ", read)
    done = check(tmp_path, source, "--format", "json", target="model.py")
    codes = [finding["code"] for finding in json.loads(done.stdout)["findings"]]
    assert codes.count("capture-does-not-execute") == found, done.stdout
