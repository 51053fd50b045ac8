"""`cgtool debug -i` on the simulated device: through a pipe, and on a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

import pytest
import torch

from tests.forked_workers import run_cgtool

MODEL = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)

    def forward(self, x):
        hidden = self.first(x).tanh()
        return self.last(hidden)


def build(device):
    torch.manual_seed(0)
    return Net().to(device), (torch.linspace(-1, 1, 12, device=device).reshape(3, 4),)
"""
COMMAND = [sys.executable, "-m", "cgtool.cli.app", "debug", "entry.py:build", "-i"]
OPTIONS = ("--device", "simulated")
ENVIRONMENT = dict(os.environ)
"""Without what readline adds to it in C: the width of a terminal."""


@pytest.fixture
def session(tmp_path):
    """Runs commands from a pipe, and returns what was printed."""

    def run(*commands, source=MODEL, code=0, options=()):
        (tmp_path / "entry.py").write_text(source)
        done = run_cgtool(
            "debug", "entry.py:build", "-i", *OPTIONS, *options, cwd=tmp_path, timeout=300,
            stdin="".join(f"{each}\n" for each in commands),
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert "\x1b" not in done.stdout
        assert "Traceback" not in done.stderr
        return done.stdout if code == 0 else done.stderr

    return run


def line_of(text, source=MODEL):
    return 1 + next(n for n, line in enumerate(source.splitlines()) if text in line)


def eager():
    names = {}
    exec(MODEL, names)
    model, (x,) = names["build"]("cpu")
    return model, x


def test_steps_and_places(session):
    first, tanh = line_of("self.first(x)"), line_of("tanh")
    shown = session("next", "n", "unt last", "c", "next").splitlines()
    assert shown[0].startswith("3 nodes of forward, 6 nodes of backward")
    assert shown[1] == f"before forward 0/3  aten::addmm  first  entry.py:{first}"
    assert shown[3].startswith(
        f"forward 0/3  aten::addmm  first  entry.py:{first}  out float32[3,8]"
    )
    assert shown[4] == f"    {first} | hidden = self.first(x).tanh()"
    assert shown[5].startswith(f"forward 1/3  aten::tanh  entry.py:{tanh}") or "(root)" in shown[5]
    assert shown[7].startswith("forward 2/3  aten::addmm  last")
    assert shown[9].startswith("backward 5/6")
    ended = "the replay has ended: restart begins again"
    assert shown[11].startswith(ended)
    assert shown[12].startswith(f"*** {ended}")


def test_expressions_are_those_of_eager(session):
    model, x = eager()
    with torch.no_grad():
        out = model.first(x)
        hidden = out.tanh()
    shown = session(
        "p next.in1.shape", "n", "print out.tolist()", "p in0.shape, mat1.shape",
        "p out.zero_()[0, 0]", "n", "p self.sum().item()", "p out.sum().item()",
        "p [out[i, 0].item() for i in range(3)]", "p",
    )  # fmt: skip
    lines = [line for line in shown.splitlines() if not re.match(r"\w+ |    ", line)]
    assert lines[0] == "torch.Size([3, 4])"
    assert torch.allclose(torch.tensor(eval(lines[1])), out)
    assert lines[2] == "(torch.Size([8]), torch.Size([3, 4]))"
    assert lines[3].startswith("tensor(0.")
    # What an expression writes is a copy.
    assert float(lines[4]) == pytest.approx(out.sum().item(), abs=1e-5)
    assert float(lines[5]) == pytest.approx(hidden.sum().item(), abs=1e-5)
    assert eval(lines[6]) == pytest.approx(hidden[:, 0].tolist(), abs=1e-5)
    assert {"out", "in0", "self", "next.in0"} <= set(lines[7].split(", "))


def test_errors_do_not_end_it(session):
    shown = session(
        "nexxt", "next 0", "p 1/0", "p nothing", "p (", "p exit(3)", "until", "until 99",
        "until firt", "until foo=1", "until node=x", "n", "until 0", "clear 3", "nan maybe",
        "save", "save 3", "save out nowhere/out.pt", "help foo", "p 40 + 2",
    )  # fmt: skip
    errors = [line for line in shown.splitlines() if line.startswith("***")]
    for error, text in zip(
        errors,
        [
            "no command nexxt: did you mean next?", "not a number of nodes", "ZeroDivisionError",
            "NameError: name 'nothing' is not defined; print lists the names", "SyntaxError",
            "SystemExit", "until PATTERN", "no node 99 in forward, which has 0 to 2",
            "no node matches firt (did you mean first?", "there is no field 'foo'",
            "not a node number", "has run in this replay", "no breakpoint 3", "nan on",
            "save NAME", "int is not a tensor", "No such file", "no command foo",
        ],
        strict=True,
    ):  # fmt: skip
        assert text in error
    assert shown.splitlines()[-1] == "42"


def test_breakpoints(session):
    line = line_of("self.last(hidden)")
    shown = session(
        "break", "break mm", f"b entry.py:{line}", "b", "c", "c", "clear 1", "cl", "c",
    ).splitlines()  # fmt: skip
    assert shown[3] == "no breakpoints"
    assert shown[4] == "breakpoint 1 at mm: 3 nodes"
    assert shown[6:8] == [shown[4], shown[5]]
    stops = [each for each in shown if re.match(r"\w+ward \d", each)]
    assert [each.split()[:3] for each in stops] == [
        ["forward", "2/3", "aten::addmm"], ["backward", "0/6", "aten::mm"],
        ["backward", "5/6", "aten::sum.dim_IntList"],
    ]  # fmt: skip


def test_restart_restores_the_state_and_replay_does_not(session):
    source = """
import torch


def build(device):
    total = torch.zeros((), device=device)

    def step():
        total.add_(1)
        return total * 2

    return step
"""
    ask = ("n", "p in0.item()", "c")
    shown = session(*ask, "replay", *ask, "restart", *ask, source=source)
    first, second, third = (float(each) for each in re.findall(r"^\d+\.\d+$", shown, re.MULTILINE))
    assert (second, third) == (first + 1, first)


def test_what_is_known_of_a_node(session):
    shown = session("until tanh_backward", "where", "list", "info", "info 5", "list last")
    assert "backward of TanhBackward0, called at" in shown
    assert "-> hidden = self.first(x).tanh()" in shown
    tanh = line_of("tanh")
    assert re.search(rf"^ +{tanh} ->  +hidden = self.first\(x\).tanh\(\)$", shown, re.MULTILINE)
    assert re.search(rf"^ +{tanh + 1} +return self.last\(hidden\)$", shown, re.MULTILINE)
    info = shown[shown.index("node 3 of backward: op") :]
    for text in ("aten::tanh_backward", "grad_output: float32[3,8]", "edges to 4", "norm "):
        assert text in info
    assert "node 5 of backward: op" in info
    assert re.search(rf"^ +{tanh + 1} ->  +return self.last\(hidden\)$", info, re.MULTILINE)


def test_a_phase_is_a_pattern(session):
    assert re.search(r"^ *backward 0/6  aten::mm", session("until backward"), re.MULTILINE)


def test_a_tensor_is_saved(session, tmp_path):
    shown = session("n", "save out", "save out[0] row.pt", "save out[0] row.pt", "p out.tolist()")
    assert "saved forward-0-out.pt" in shown
    assert shown.count("saved row.pt (replaced the file that was there)") == 1
    out = torch.load(tmp_path / "forward-0-out.pt")["out"]
    assert out.tolist() == eval(shown.splitlines()[-1])
    assert torch.equal(torch.load(tmp_path / "row.pt")["out[0]"], out[0])


def test_the_first_nan_stops_it_once(session):
    source = MODEL.replace("self.first(x).tanh()", "(self.first(x) - 9).log()")
    shown = session("nan", "nan on", "c", "p out.isnan().all().item()", "c", source=source)
    assert "nan is off\nnan is on\nthe first NaN:\nforward 2/4  aten::log" in shown
    assert "24 NaN at [0, 0] first" in shown
    assert "True\nbackward" in shown


def test_help_lists_all_commands_in_80_columns(session):
    shown = session("help", "help n").splitlines()
    assert max(map(len, shown[3:])) <= 80
    assert shown[3] == shown[-1] == "next, n [N]            run the next node, or N nodes"


def test_options_that_do_not_fit(session):
    assert "-i takes no --orders" in session(code=2, options=["--orders", "3"])
    assert "-i takes no --orders" in session(code=2, options=["--format", "json"])


def test_a_capture_file_has_no_values(tmp_path):
    done = run_cgtool("debug", "a.cgt", "-i", cwd=tmp_path)
    assert done.returncode == 2
    assert "values need the program" in done.stderr


def test_an_expression_that_ends_the_worker_ends_it(session):
    shown = session("p __import__('os')._exit(3)", "p 1", code=4)
    assert "called os._exit(3) in phase 'prompt'" in shown


HANGS = '''
import ctypes
import time

import torch


@torch.library.custom_op("prompt_test::waits", mutates_args=())
def waits(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    if ctypes.c_float.from_address(count.data_ptr()).value > 4:
        time.sleep(SECONDS)  # hangs
    return x * 2


@waits.register_fake
def _(x, count):
    return torch.empty_like(x)


def build(device):
    """Hangs in the second replay."""
    x, count = torch.ones(3, device=device), torch.zeros((), device=device)

    def step():
        count.add_(1)
        return waits(x + 1, count) * 3  # calls

    return step
'''


@pytest.mark.parametrize("interactive", [False, True])
def test_a_timeout_names_the_node(tmp_path, interactive):
    source = HANGS.replace("SECONDS", "600")
    (tmp_path / "entry.py").write_text(source)
    done = run_cgtool(
        "debug", "entry.py:build", *["-i"] * interactive, *OPTIONS, "--timeout", "4",
        cwd=tmp_path, stdin="c\nreplay\nc\np 1\n",
    )  # fmt: skip
    assert done.returncode == 4
    line = line_of("# calls", source)
    assert f"in phase 'node 2 of step, `prompt_test::waits`, entry.py:{line}'" in done.stderr


def test_the_end_of_output_ends_it(tmp_path):
    (tmp_path / "entry.py").write_text(MODEL)
    command = (
        f"yes help | {sys.executable} -m cgtool.cli.app debug entry.py:build -i --device simulated"
    )
    done = subprocess.run(
        f"{command} | head -3", shell=True, capture_output=True, text=True, cwd=tmp_path,
        env=ENVIRONMENT, timeout=120, check=False,
    )  # fmt: skip
    assert len(done.stdout.splitlines()) == 3
    assert "Traceback" not in done.stderr


class Terminal:
    """The command on a terminal of 80 columns."""

    def __init__(self, folder, source):
        (folder / "entry.py").write_text(source)
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            environment = {**os.environ, "TERM": "xterm"}
            os.execve(sys.executable, [*COMMAND, *OPTIONS, "-q"], environment)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))

    def read(self, until="(cgtool) ", seconds=60.0):
        deadline, got = time.monotonic() + seconds, ""
        while until not in got and time.monotonic() < deadline:
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    got += os.read(self.fd, 1 << 16).decode()
                except OSError:  # it has ended
                    break
        assert not until or until in got, got
        return re.sub(r"\x1b\[[0-9;?]*[a-z]", "", got)

    def send(self, text):
        os.write(self.fd, text.encode())

    def code(self, seconds=20.0):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        raise AssertionError("it does not end")


@pytest.fixture
def terminal(tmp_path):
    started = []

    def start(source):
        started.append(Terminal(tmp_path, source))
        return started[-1]

    yield start
    for each in started:
        if each.pid:
            os.kill(each.pid, 9)
            os.waitpid(each.pid, 0)
        with contextlib.suppress(OSError):
            os.close(each.fd)


def test_a_terminal_has_a_prompt_completion_and_history(terminal):
    screen = terminal(MODEL)
    screen.read()
    screen.send("unt las\t\n")
    assert "forward 2/3  aten::addmm  last" in screen.read("\n(cgtool) ")
    screen.send("p ou\t.shape\n")
    assert "torch.Size([3, 2])" in screen.read("\n(cgtool) ")
    time.sleep(0.5)  # readline has taken over the terminal
    screen.send("x\x03")
    screen.read("\n(cgtool) ")
    screen.send("\x1b[A\n")
    assert "torch.Size([3, 2])" in screen.read("\n(cgtool) ")
    screen.send("\x04")
    assert screen.code() == 0


def test_ctrl_c_returns_to_the_prompt_between_nodes(terminal):
    screen = terminal(HANGS.replace("SECONDS", "3"))
    screen.read()
    for command in ("c\n", "replay\n"):
        screen.send(command)
        screen.read("\n(cgtool) ")
    screen.send("c\n")
    time.sleep(1)
    screen.send("\x03")
    shown = screen.read("\n(cgtool) ")
    assert "interrupted:" in shown
    assert "step 2/4" in shown
    screen.send("p sum(1 for _ in iter(int, 1))\n")  # endless
    time.sleep(1)
    screen.send("\x03")
    assert "*** KeyboardInterrupt" in screen.read("\n(cgtool) ")
    screen.send("c\n")
    assert "step 3/4" in screen.read("\n(cgtool) ")


def test_a_second_ctrl_c_ends_it(terminal):
    screen = terminal(HANGS.replace("SECONDS", "600"))
    screen.read()
    for command in ("c\n", "replay\n"):
        screen.send(command)
        screen.read("\n(cgtool) ")
    screen.send("c\n")
    for _ in range(2):
        time.sleep(1)
        screen.send("\x03")
    assert screen.code() == 130


def test_a_terminal_that_is_closed_ends_it(terminal):
    screen = terminal(MODEL)
    screen.read()
    os.close(screen.fd)
    assert screen.code() == 129
