"""``cgtool run --ready-after`` and ``--ready-output``: the moment at which a program is ready, of
which it notices nothing."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from cgtool.model import capture_file
from cgtool.model.ledger import Event
from tests.forked_workers import run_cgtool

ENGINE = """
import os, sys, time
import torch

def capture(size):
    x = torch.zeros(size, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x + 1
    return graph

one, two = capture(1), capture(2)
for _ in range(5):
    one.replay()
print("loading", file=sys.stdout)
print("\\x1b[32mINFO\\x1b[0m: ready to serve", file=sys.stderr, flush=True)
time.sleep(0.3)
for _ in range(40):
    two.replay()
capture(3)
print("bye")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ready")
    (folder / "engine.py").write_text(ENGINE)
    return folder


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_cgtool("run", "--device", "simulated", *arguments, cwd=folder)


def events(folder: Path, name: str) -> tuple[list[Event], list[str]]:
    """The events of a file, and their lines."""
    capture = capture_file.read(folder / name)
    assert capture.ledger is not None
    events = list(capture.ledger.events)
    places = (capture.frames[each.frames[0]] for each in events if each.frames)
    return events, [f"{Path(place.file).name}:{place.line}" for place in places]


@pytest.mark.parametrize(
    ("after", "line"), [(1, "engine.py:14"), (5, "engine.py:14"), (38, "engine.py:19")]
)
def test_ready_is_marked_at_the_nth_replay(folder: Path, after: int, line: str) -> None:
    done = run(folder, "--ready-after", str(after), "-o", "after.cgt", "engine.py")
    assert done.returncode == 0, done.stderr
    (ready,), lines = events(folder, "after.cgt")
    assert (ready.name, ready.replays, lines) == ("ready", after, [line])
    gate = run_cgtool("gate", "after.cgt", "--max-captures-after", "ready=0", cwd=folder)
    assert gate.returncode == 1
    assert "1 at engine.py:8, called at engine.py:20" in gate.stdout


def test_a_process_that_replays_less_is_never_ready(folder: Path) -> None:
    done = run(folder, "--ready-after", "46", "-o", "never.cgt", "engine.py")
    assert "no process replayed 46 times: --ready-after marked no event" in done.stderr
    assert events(folder, "never.cgt") == ([], [])


@pytest.mark.parametrize("pattern", [r"^INFO: ready\b", "serve$"])
def test_ready_is_the_first_line_that_matches(folder: Path, pattern: str) -> None:
    done = run(folder, "--ready-output", pattern, "-o", "output.cgt", "engine.py")
    assert done.stdout == "loading\nbye\n"
    assert done.stderr.startswith("\x1b[32mINFO\x1b[0m: ready to serve\n3 graphs"), done.stderr
    (ready,), _ = events(folder, "output.cgt")
    assert (ready.name, ready.replays, ready.output) == ("ready", 5, "INFO: ready to serve")
    assert "INFO: ready to serve" in done.stderr.partition("Events")[2]
    gate = run_cgtool("gate", "output.cgt", "--max-captures-after", "ready=0", cwd=folder)
    assert gate.returncode == 1


def test_a_line_of_several_processes_is_an_event_of_each(folder: Path) -> None:
    (folder / "parent.py").write_text(
        "import subprocess, sys, torch\n"
        "for _ in range(2):\n    subprocess.run([sys.executable, 'engine.py'])\n"
    )
    run(folder, "--ready-output", "ready", "-o", "several.cgt", "parent.py")
    ready, _ = events(folder, "several.cgt")
    assert [(each.process, each.replays) for each in ready] == [(0, 0), (1, 5), (2, 0)]
    gate = run_cgtool("gate", "several.cgt", "--max-captures-after", "ready=0", cwd=folder)
    assert gate.returncode == 1
    # One of the first engine, and all of the second.
    assert "4 over" in gate.stdout


def test_a_line_that_never_comes(folder: Path) -> None:
    done = run(folder, "--ready-output", "up and running", "-o", "none.cgt", "engine.py")
    assert done.returncode == 0
    assert "no line of the output matched --ready-output up and running" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--ready-output", "(", "engine.py"), "not a regular expression"),
        (("--ready-output", "x", "--ready-after", "1", "engine.py"), "exclude each other"),
        (("--ready-after", "0", "engine.py"), "greater than or equal to 1"),
        (("--ready-after", "1", "saved.cgt"), "applies to a program"),
    ],
)
def test_options_that_make_no_sense(folder: Path, arguments: tuple[str, ...], says: str) -> None:
    done = run(folder, *arguments)
    assert done.returncode == 2
    assert says in done.stderr


# --- the program keeps its streams

LOOKS = """
import os, signal, sys, termios, time
print([os.isatty(stream) for stream in (0, 1, 2)], file=sys.stdout)
if os.isatty(1):
    print(os.get_terminal_size(1), [termios.tcgetattr(1)[at] for at in (0, 2, 3)])
    print(os.stat("/dev/tty").st_rdev, os.getpgrp() == os.tcgetpgrp(0))
for line in range(3):
    print("out", line, flush=True)
    print("err", line, file=sys.stderr, flush=True)
sys.stdout.write("a prompt without an end: ")
sys.stdout.flush()
if sys.argv[1:] == ["waits"]:
    time.sleep(60)
elif os.isatty(0):
    print("read", input())
"""


def on_terminal(folder: Path, command: list[str], *, interrupt: bool = False) -> tuple[str, int]:
    """What a command shows on a terminal of its own, and its status. It gets a line of input, or
    Ctrl-C."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execv(command[0], command)
    termios.tcsetwinsize(terminal, (31, 77))
    shown, is_sent = b"", False
    while True:
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:
            break
        if not data:
            break
        shown += data
        if not is_sent and b"without an end: " in shown:
            os.write(terminal, b"\x03" if interrupt else b"typed\n")
            is_sent = True
    _, status = os.waitpid(pid, 0)
    return shown.decode(), os.waitstatus_to_exitcode(status)


def cgtool_run(*arguments: str) -> list[str]:
    options = ["run", "--device", "simulated", "--quiet", *arguments]
    return [sys.executable, "-m", "cgtool", *options]


def test_a_terminal_stays_one(folder: Path) -> None:
    (folder / "looks.py").write_text(LOOKS)
    plain, status = on_terminal(folder, [sys.executable, "looks.py"])
    assert "[True, True, True]" in plain
    assert "columns=77, lines=31" in plain
    followed, followed_status = on_terminal(
        folder, cgtool_run("--ready-output", "never", "--", sys.executable, "looks.py")
    )
    assert followed.startswith(plain)
    assert status == followed_status == 0


def test_ctrl_c_is_for_the_program(folder: Path) -> None:
    (folder / "looks.py").write_text(LOOKS)
    command = [sys.executable, "looks.py", "waits"]
    plain, _ = on_terminal(folder, command, interrupt=True)
    followed, status = on_terminal(
        folder, cgtool_run("--ready-output", "never", "--", *command), interrupt=True
    )
    assert plain.rstrip().endswith("KeyboardInterrupt")
    # It may come while the prompt is written, or after that.
    assert followed.startswith(plain.partition("Traceback")[0])
    assert "KeyboardInterrupt" in followed
    assert status == 128 + signal.SIGINT


def test_both_streams_in_one_place_keep_their_order(folder: Path) -> None:
    (folder / "looks.py").write_text(LOOKS)
    command = cgtool_run("--ready-output", "never", "--", sys.executable, "looks.py")
    done = subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False, timeout=60,
    )  # fmt: skip
    lines = [f"{name} {line}" for line in range(3) for name in ("out", "err")]
    assert done.stdout.splitlines()[1:7] == lines


def test_what_goes_on_writing_is_passed_on(folder: Path) -> None:
    """A process that the program leaves behind writes to the same place later."""
    (folder / "leaves.sh").write_text("(sleep 2; echo later) &\necho now\n")
    command = cgtool_run("--ready-output", "never", "--", "sh", "leaves.sh")
    begin = time.monotonic()
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "now\n"
        process.wait()
        assert time.monotonic() - begin < 60
        assert process.stdout.read() == "later\n"


def test_a_program_whose_output_nobody_reads_is_told_so(folder: Path) -> None:
    """As without cgtool: `... | head -1` ends it."""
    writes = "import sys\nwhile True:\n    print('y' * 99)\n"
    (folder / "writes.py").write_text(writes)
    command = cgtool_run("--ready-output", "never", "--", sys.executable, "writes.py")
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "y" * 99 + "\n"
        process.stdout.close()
        assert "BrokenPipeError" in process.stderr.read()
        assert process.wait(60) == 1
