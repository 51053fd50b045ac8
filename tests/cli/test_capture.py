"""`cgtool capture` end to end on the simulated device, and everything that can go wrong with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cgtool.model.capture import SIMULATED_OPS
from cgtool.model.capture_file import read
from tests.forked_workers import run_cgtool

ROOT = Path(__file__).resolve().parent.parent.parent
MODEL = """
import os, sys, time, ctypes
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())

    def forward(self, x):
        return self.layers(x).sum()

def build(device):
    return Net().to(device), (torch.randn(4, 8, device=device),)
"""


def cgtool(*arguments, cwd, timeout=120, **options):
    return run_cgtool(*arguments, cwd=cwd, timeout=timeout, **options)


def attempt(tmp_path, body, *arguments, name="build", **options):
    (tmp_path / "model.py").write_text(MODEL + body)
    done = cgtool(
        "capture", f"model.py:{name}", "--device", "simulated", *arguments, cwd=tmp_path, **options
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def line_of(body, word):
    lines = (MODEL + body).splitlines()
    return next(number for number, line in enumerate(lines, 1) if word in line)


def nothing_written(tmp_path):
    left = {path.name for path in tmp_path.iterdir()} - {"model.py", "__pycache__"}
    return not left


def test_the_main_job(tmp_path):
    done = attempt(tmp_path, "")
    assert done.returncode == 0, done.stderr
    assert "simulated" in done.stdout
    assert "Nodes with a known op 100%, line 100%" in done.stdout
    capture = read(tmp_path / "model-build.cgt")
    assert [graph.phase for graph in capture.graphs] == ["forward", "backward"]
    assert capture.environment.simulated
    assert capture.caveats[0].code == "simulated"
    assert SIMULATED_OPS in capture.caveats[0].text


def test_json_is_alone_on_standard_output(tmp_path):
    body = "print('from the model')\nsys.stdout.flush()\n"
    done = attempt(tmp_path, body, "--format", "json", "-o", "out.cgt")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["schema"] == "cgtool-summary"
    assert summary["simulated"] is True
    assert "from the model" in done.stderr


def test_the_same_seed_gives_the_same_graphs(tmp_path):
    attempt(tmp_path, "", "-o", "a.cgt", "--seed", "1")
    attempt(tmp_path, "", "-o", "b.cgt", "--seed", "1")
    left, right = read(tmp_path / "a.cgt"), read(tmp_path / "b.cgt")
    assert [graph.nodes for graph in left.graphs] == [graph.nodes for graph in right.graphs]
    assert [graph.edges for graph in left.graphs] == [graph.edges for graph in right.graphs]


def test_no_backward(tmp_path):
    attempt(tmp_path, "", "--no-backward", "-o", "out.cgt")
    assert [graph.phase for graph in read(tmp_path / "out.cgt").graphs] == ["forward"]


def test_a_training_step_with_arguments_is_one_graph(tmp_path):
    body = """
def train(x):
    loss = net(x)
    loss.backward()
    return loss

net = Net()

def step(device):
    return (net.to(device), train)[1], (torch.randn(4, 8, device=device),)
"""
    for iterations in ("3", "1", "0"):
        done = attempt(
            tmp_path, body, "-q", "-o", "out.cgt", "--warmup-iters", iterations, name="step"
        )
        assert done.returncode == 0, done.stderr
        capture = read(tmp_path / "out.cgt")
        assert [graph.name for graph in capture.graphs] == ["step"]
        assert capture.entry.kind == "step"


def test_the_program_gets_its_own_arguments(tmp_path):
    body = """
import argparse

def width():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int)
    return parser.parse_args().width

def late(device):
    return lambda x: x * width(), (torch.ones(3, device=device),)

WIDTH = width()
"""
    done = attempt(tmp_path, body, "-q", "--", "--width", "5", name="late")
    assert done.returncode == 0, done.stderr
    capture = read(tmp_path / "model-late.cgt")
    assert capture.graphs[0].calls
    assert "('--width', '5')" in [option.value for option in capture.entry.options]
    refused = attempt(tmp_path, body, "-q", "--", "--height", "5", name="late")
    assert refused.returncode == 4
    assert "fix: give its arguments after `--`" in refused.stderr


def test_generators_that_the_entry_reaches_are_registered(tmp_path):
    body = """
class Noise(torch.nn.Module):
    def __init__(self, device):
        super().__init__()
        self.child = torch.nn.Identity()
        self.child.source = torch.Generator(device)
        assert self.child.source.device.type == "cuda"

    def forward(self, x, given):
        own = torch.randn(x.shape, device=x.device, generator=self.child.source)
        return x + own + torch.randn(x.shape, device=x.device, generator=given)

def noise(device):
    x = torch.ones(3, device=device)
    return Noise(device), (x, torch.Generator(device=device))

def closure(device):
    generator, host = torch.Generator(device).manual_seed(3), torch.Generator()
    def f(x):
        return x + torch.randn(x.shape, device=x.device, generator=generator) + host.initial_seed()
    return f, (torch.ones(3, device=device),)
"""
    for name, names in (("noise", "child.source, argument 1"), ("closure", "generator")):
        done = attempt(tmp_path, body, "-q", name=name)
        assert done.returncode == 0, done.stderr
        notes = [caveat.text for caveat in read(tmp_path / f"model-{name}.cgt").caveats]
        assert any(note.endswith(f"register_generator_state(): {names}") for note in notes), notes
        assert not any("keeps the values" in note for note in notes)


def test_inputs_from_the_command_line(tmp_path):
    body = "def function(x, scale):\n    return (x * scale).sum()\n"
    done = attempt(
        tmp_path,
        body,
        "--input", "x=float32[4,8]?grad",
        "--input", "scale=?scalar=0.5",
        "-o", "out.cgt",
        name="function",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [graph.phase for graph in read(tmp_path / "out.cgt").graphs] == ["forward", "backward"]


def test_pool_shared_and_separate_differ_in_pools(tmp_path):
    sample = ROOT / "samples" / "gan.py"
    for mode, pools in (("shared", 1), ("separate", 4)):
        done = cgtool(
            "capture", f"{sample}:build", "--device", "simulated", "--pool", mode, "-q",
            "-o", "gan.cgt", cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        report = json.loads(cgtool("pools", "gan.cgt", "--format", "json", cwd=tmp_path).stdout)
        assert len(report["pools"]) == pools
        assert bool(report["shared"]) == (mode == "shared")


FAILURES = {
    "no such name": ("", "nothing_here", 2, "no nothing_here", None),
    "syntax error": ("def broken(:\n", "build", 4, "SyntaxError", "def broken"),
    "import error": ("import no_such_module\n", "build", 4, "no_such_module", "import no_such"),
    "exception at import": ("raise KeyError('here')\n", "build", 4, "KeyError", "raise KeyError"),
    "exception in the factory": (
        "def make(device):\n    raise RuntimeError('not today')\n",
        "make", 4, "not today", "raise RuntimeError",
    ),
    "nonsense": ("def make(device):\n    return 42\n", "make", 4, "int", None),
    "not callable": ("make = 3\n", "make", 2, "int", None),
    "an argument that is no tensor for shared callables": (
        "def make(device):\n"
        "    nets = Net().to(device), Net().to(device)\n"
        "    return nets, ((torch.ones(4, 8, device=device),), (3,))\n",
        "make", 4, "tensor", None,
    ),
    "raises in forward": (
        "def f(x):\n    return x @ torch.ones(3, 3, device=x.device)\n"
        "def make(device):\n    return f, (torch.ones(4, 8, device=device),)\n",
        "make", 4, "RuntimeError", "x @ torch.ones",
    ),
    "sync in capture": (
        "def f(x):\n    return x / x.max().item()\n"
        "def make(device):\n    return f, (torch.ones(4, 8, device=device),)\n",
        "make", 4, "not permitted when a stream is capturing", "x.max().item()",
    ),
    "unjoined stream": (
        "side = torch.cuda.Stream()\n"
        "def f(x):\n"
        "    side.wait_stream(torch.cuda.current_stream())\n"
        "    with torch.cuda.stream(side):\n"
        "        y = x * 2\n"
        "    return x + 1\n"
        "def make(device):\n    return f, (torch.ones(4, 8, device=device),)\n",
        "make", 4, "a stream that was created at model.py:15 has work that is not joined",
        "y = x * 2",
    ),
    "empty graph": (
        "def f(x):\n    return x\n"
        "def make(device):\n    return f, (torch.ones(3, device=device),)\n",
        "make", 4, "nothing was captured", None,
    ),
    "unused parameter": (
        "class Spare(Net):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.spare = torch.nn.Parameter(torch.ones(3))\n"
        "def make(device):\n    return Spare().to(device), (torch.ones(4, 8, device=device),)\n",
        "make", 4, "give no gradient to spare", None,
    ),
    "forked child that comes back": (
        "def f(x):\n    if os.fork() == 0:\n        raise ValueError('in the child')\n"
        "    return x + 1\n"
        "def make(device):\n    f(0)\n    os.wait()\n    return 3\n",
        "make", 4, "int", None,
    ),
    "closed descriptors": (
        "def make(device):\n    os.closerange(3, 256)\n"
        "    return Net().to(device), (torch.ones(4, 8, device=device),)\n",
        "make", 4, "closed the worker's file descriptors", None,
    ),
    "unused input": (
        "def make(device):\n"
        "    return (lambda x, y: x * 2), (\n"
        "        torch.ones(3, requires_grad=True, device=device),\n"
        "        torch.ones(3, requires_grad=True, device=device))\n",
        "make", 4, "give no gradient to input 1\n", None,
    ),
    "segfault": (
        "def make(device):\n    ctypes.string_at(0)\n", "make", 4, "SIGSEGV", "ctypes.string_at",
    ),
    "os._exit": (
        "def make(device):\n    os._exit(7)\n", "make", 4, "called os._exit(7)", "os._exit",
    ),
    "sys.exit": ("def make(device):\n    sys.exit(3)\n", "make", 4, "sys.exit(3)", "sys.exit(3)"),
    "host out of memory": (
        "def make(device):\n    raise MemoryError\n", "make", 4, "MemoryError", "raise MemoryError",
    ),
    "deep recursion": (
        "def again():\n    again()\ndef make(device):\n    again()\n",
        "make", 4, "RecursionError", "    again()",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILURES)
def test_what_can_go_wrong_has_one_clear_message(name, tmp_path):
    body, entry, code, words, source = FAILURES[name]
    done = attempt(tmp_path, body, name=entry)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    if source is not None:
        assert f"model.py:{line_of(body, source)}" in done.stderr
    assert done.stdout == ""
    assert nothing_written(tmp_path)


def test_no_such_file(tmp_path):
    done = cgtool("capture", "nowhere.py:build", cwd=tmp_path)
    assert done.returncode == 2
    assert "nowhere.py: no such file" in done.stderr
    assert nothing_written(tmp_path)


def test_a_hang_is_ended_and_its_line_named(tmp_path):
    body = "def make(device):\n    while True:\n        time.sleep(0.05)\n"
    done = attempt(tmp_path, body, "--timeout", "5", name="make")
    assert done.returncode == 4
    assert "no result after 5 s" in done.stderr
    assert f"model.py:{line_of(body, 'time.sleep')}" in done.stderr
    assert nothing_written(tmp_path)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_interrupt_leaves_nothing_behind(number, code, tmp_path):
    (tmp_path / "model.py").write_text(
        MODEL
        + "def make(device):\n"
        + "    import os\n"
        + "    with open('started.new', 'w') as file:\n"
        + "        file.write(str(os.getpid()))\n"
        + "    os.rename('started.new', 'started')\n"
        + "    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "cgtool.cli.app", "capture", "model.py:make", "-o", "out.cgt"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    worker = int((tmp_path / "started").read_text())
    process.send_signal(number)
    _, error = process.communicate(timeout=30)
    assert process.returncode == code
    assert "Traceback" not in error
    while is_running(worker):
        assert time.monotonic() < deadline, "the worker process still runs"
        time.sleep(0.05)
    (tmp_path / "started").unlink()
    # Nobody can clean up after itself then.
    assert number == signal.SIGKILL or nothing_written(tmp_path)


def is_running(process: int) -> bool:
    """Whether there is such a process, other than one that waits to be collected."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("place", ["missing/out.cgt", "."])
def test_unwritable_places(place, tmp_path):
    done = attempt(tmp_path, "", "-o", place)
    assert done.returncode == 2
    assert "cannot write" in done.stderr
    assert nothing_written(tmp_path)


def test_a_full_disk_is_reported(tmp_path):
    attempt(tmp_path, "", "-o", "out.cgt", "-q")
    done = cgtool("dump", "out.cgt", "--dot", "-o", "/dev/full", cwd=tmp_path)
    assert done.returncode == 2
    assert "No space left" in done.stderr


def test_threads_and_children_that_never_end_do_not_keep_it(tmp_path):
    body = (
        "import threading\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "import subprocess\nsubprocess.Popen(['sleep', '600'])\n"
    )
    done = attempt(tmp_path, body, "-o", "out.cgt")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.cgt").exists()


def test_bench_without_a_gpu_is_one_sentence(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    done = cgtool("bench", "model.py:build", "--device", "simulated", cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr.strip().count("\n") == 0
    assert "bench needs a GPU" in done.stderr


def test_hostile_names_are_shown_as_text(tmp_path):
    body = (
        "class Odd(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.add_module('[red]\\x1b[31m\"<b>', torch.nn.Linear(8, 8))\n"
        "    def forward(self, x):\n"
        "        return next(iter(self.children()))(x)\n"
        "def make(device):\n    return Odd().to(device), (torch.ones(4, 8, device=device),)\n"
    )
    done = attempt(tmp_path, body, "-o", "out.cgt", name="make")
    assert done.returncode == 0, done.stderr
    assert "[red]" in done.stdout
    assert "\x1b[31m" not in done.stdout
    for form in ("--dot", "--svg", "--json"):
        drawn = cgtool("dump", "out.cgt", form, cwd=tmp_path)
        assert drawn.returncode == 0, drawn.stderr
        assert "\x1b" not in drawn.stdout


def test_a_capture_file_is_not_an_entry(tmp_path):
    done = cgtool("capture", "model.cgt", cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


GPT = """
from torch.nn import functional


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(64, 192), torch.nn.Linear(64, 64)

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (4, 16)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
        return x + self.out(y.transpose(1, 2).flatten(2))


def gpt(device, dtype=torch.bfloat16):
    model = torch.nn.Sequential(Block(), Block()).to(device, dtype)
    return model, (torch.randn(2, 32, 64, device=device, dtype=dtype),)


def gpt32(device):
    return gpt(device, torch.float32)
"""


@pytest.mark.parametrize(
    ("name", "op", "notes"),
    [("gpt", "cudnn", ["simulated", "attention-backend"]), ("gpt32", "efficient", ["simulated"])],
)
def test_attention_is_one_node_each_way(tmp_path, name, op, notes):
    done = attempt(tmp_path, GPT, "-o", "gpt.cgt", name=name)
    assert done.returncode == 0
    capture = read(tmp_path / "gpt.cgt")
    assert [caveat.code for caveat in capture.caveats] == notes
    op = f"aten::_scaled_dot_product_{op}_attention"
    for graph, name in zip(capture.graphs, (op, f"{op}_backward"), strict=True):
        ops = [capture.origins[node.origin].op for node in graph.nodes]
        assert ops.count(name) == 2
        assert not {"aten::bmm", "aten::_safe_softmax"} & set(ops)
