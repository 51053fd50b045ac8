"""User code that is odd or hostile: one true answer each, at the user's line, and never a bug."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.cli.test_capture import attempt, cgtool, line_of, nothing_written
from tests.forked_workers import run_fresh_cgtool

HEAD = "import builtins, signal, threading, time, warnings\n"

ANSWERS = {
    "os._exit in a thread": (
        "def f(x):\n"
        "    thread = threading.Thread(target=os._exit, args=(3,))\n"
        "    thread.start()\n    thread.join()  # waits\n"
        "def make(device):\n    return f, (torch.ones(3, device=device),)\n",
        "called os._exit(3)", "thread.",
    ),
    "SIGTERM to itself": (
        "def make(device):\n    os.kill(os.getpid(), signal.SIGTERM)\n    time.sleep(9)\n",
        "sent itself SIGTERM with os.kill", "os.kill",
    ),
    "SIGKILL to itself": (
        "def make(device):\n    os.kill(os.getpid(), signal.SIGKILL)\n",
        "sent itself SIGKILL with os.kill", "os.kill",
    ),
    "SIGALRM": (
        "def make(device):\n    signal.alarm(1)\n    time.sleep(9)\n",
        "ended by SIGALRM", "time.sleep(9)",
    ),
    "SIGINT to itself": (
        "def make(device):\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(9)\n",
        "raised KeyboardInterrupt", "os.kill",
    ),
    "another program": (
        "def make(device):\n    os.execvp('true', ['true'])\n",
        "replaced its own process", "os.execvp",
    ),
    "a part of PyTorch is gone": (
        "torch.utils._pytree.tree_flatten_with_path = None\n"
        "def make(device):\n    return build(device)\n",
        "replaced torch.utils._pytree.tree_flatten_with_path", "torch.utils._pytree.tree",
    ),
    "builtins.len is gone": (
        "builtins.len = None\ndef make(device):\n    return build(device)\n",
        "replaced builtins.len", "builtins.len = None",
    ),
    "everything is an instance of everything": (
        "builtins.isinstance = lambda *_: True\ndef make(device):\n    return build(device)\n",
        "replaced builtins.isinstance", "builtins.isinstance =",
    ),
    "torch.autograd.grad is gone": (
        "torch.autograd.grad = None\n"
        "def make(device):\n    return build(device)\n",
        "replaced torch.autograd.grad", "def make",
    ),
    "no tensor": (
        "def f(name):\n    return name\ndef make(device):\n    return f, ('hello',)\n",
        "f is given only 'hello' (str)", "def make",
    ),
    "meta parameters": (
        "def make(device):\n"
        "    return torch.nn.Linear(8, 8, device='meta'), (torch.ones(4, 8, device=device),)\n",
        "parameter weight is on the meta device", "def make",
    ),
    "an error raised while another is handled": (
        "def f(x):\n    try:\n        {}['key']\n    except KeyError:\n"
        "        raise ValueError('the real one')\n"
        "def make(device):\n    return f, (torch.ones(3, device=device),)\n",
        "f raised ValueError in warm-up: the real one", "raise ValueError",
    ),
    "Adam without capturable": (
        "def make(device):\n"
        "    net, x = Net().to(device), torch.ones(4, 8, device=device)\n"
        "    adam = torch.optim.Adam(net.parameters())\n"
        "    def step():\n"
        "        net(x).backward()\n        adam.step()\n"
        "    return step\n",
        "fix: construct it with capturable=True: Adam(..., capturable=True)", "adam.step()",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_the_answer_is_true_and_names_the_line(name, tmp_path):
    body, words, source = ANSWERS[name]
    done = attempt(tmp_path, HEAD + body, name="make")
    assert done.returncode == 4, done.stderr
    assert words in done.stderr
    assert "bug" not in done.stderr
    assert f"model.py:{line_of(HEAD + body, source)}" in done.stderr
    assert done.stdout == ""
    assert nothing_written(tmp_path)


def test_a_recursion_is_folded(tmp_path):
    body = "def f(x):\n    return g(x)\ndef g(x):\n    return f(x)\n"
    body += "def make(device):\n    return f, (torch.ones(3, device=device),)\n"
    done = attempt(tmp_path, body, name="make")
    assert done.returncode == 4
    assert 4 <= done.stderr.count("  from ") + done.stderr.count("  at ") <= 5
    assert "more frames of these 2" in done.stderr


SPARSE = {
    "sparse": "torch.eye(4, device=device).to_sparse()",
    "compressed": "torch.eye(4, device=device).to_sparse_csr()",
    "nested": "torch.nested.nested_tensor([torch.ones(4, 4)], layout=torch.jagged, device=device)",
}


@pytest.mark.parametrize("kind", SPARSE)
def test_tensors_without_a_storage_are_captured_or_named(kind, tmp_path):
    body = "def f(x):\n    return (x * 2).sum()\n"
    body += f"def make(device):\n    return f, ({SPARSE[kind]},)\n"
    done = attempt(tmp_path, body, "-o", "out.cgt", name="make")
    if done.returncode:
        assert done.returncode == 4, done.stderr
        assert "f: cgtool cannot read the storage of a " in done.stderr
    else:
        assert (tmp_path / "out.cgt").exists()


def test_a_bug_of_ours_is_reported_as_one(tmp_path):
    # The hook runs in the worker before anything of the user's does.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'cgtool.worker.child' in sys.orig_argv:\n"
        "    import cgtool.program.description as description\n"
        "    description.strided_parts = None\n"
    )
    (tmp_path / "model.py").write_text("import torch\nm = torch.nn.ReLU()\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = run_fresh_cgtool(
        "capture", "model.py:m", "--input", "0=float32[4]", "--device", "simulated",
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 70, done.stderr
    assert "this is a bug in cgtool, not in your code: TypeError" in done.stderr
    (report,) = tmp_path.glob("cgtool-bug-*.txt")
    assert "strided_parts" in report.read_text()


def test_what_the_code_prints_forks_and_drops_is_not_in_the_answer(tmp_path):
    body = """
import multiprocessing, threading, warnings
class Drops:
    def __del__(self):
        raise ValueError("in __del__")
def raises():
    raise ValueError("in a thread")
def f(x):
    print("printed")
    os.write(1, b"written\\n")
    os.system("echo run")
    if os.fork() == 0:
        print("in a child", flush=True)
        raise ValueError("the child comes back")
    os.wait()
    Drops()
    thread = threading.Thread(target=raises)
    thread.start()
    thread.join()
    warnings.warn("a warning")
    return x * 2
def make(device):
    process = multiprocessing.get_context("spawn").Process(target=print, args=("spawned",))
    process.start()
    process.join()
    return f, (torch.ones(3, device=device),)
"""
    (tmp_path / "model.py").write_text("import os, sys\nimport torch\n" + body)
    done = cgtool(
        "capture", "model.py:make", "--device", "simulated", "--format", "json", "-o", "out.cgt",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema"] == "cgtool-summary"
    for words in ("printed", "written", "run", "in a child", "spawned", "a warning"):
        assert words in done.stderr
    assert "cgtool/" not in done.stderr


def test_warnings_of_pytorch_name_the_users_line(tmp_path):
    body = "def make(device):\n    torch.range(0, 3)\n    return build(device)\n"
    done = attempt(tmp_path, body, "-o", "out.cgt", name="make")
    assert done.returncode == 0, done.stderr
    assert f"model.py:{line_of(body, 'torch.range')}: UserWarning: torch.range" in done.stderr
    assert "cgtool/" not in done.stderr


@pytest.mark.parametrize("module", ["typer", "msgspec", "cgtool.cli.capture", "tempfile"])
def test_an_interrupt_while_modules_are_read_is_quiet(module):
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys\n"
            "from cgtool.cli.app import main\n"
            "class Interrupts:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            f"        if name == {module!r}:\n"
            "            raise KeyboardInterrupt\n"
            f"sys.modules.pop({module!r}, None)\n"
            "sys.meta_path.insert(0, Interrupts())\n"
            "sys.argv[1:] = ['capture', 'model.py:build']\n"
            "main()\n",
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "")


def test_the_input_grammar_keeps_its_lines_at_80_columns(tmp_path):
    from cgtool.program.spec import GRAMMAR

    for command in ("capture", "bench"):
        done = cgtool(command, "--help", cwd=tmp_path, env={**os.environ, "COLUMNS": "80"})
        assert done.returncode == 0
        lines = [line.strip() for line in done.stdout.splitlines()]
        for line in GRAMMAR.splitlines():
            assert line.strip() in lines
        assert max(map(len, lines)) <= 80


TEXTS = {
    "lone surrogates": ("'\\ud800 and \\x1b[31m'", "? and \\x1b[31m"),
    "a message without end": ("'x' * 50_000_000", "x" * 900),
}


@pytest.mark.parametrize("name", TEXTS)
def test_messages_of_errors_are_shown_as_one_line_of_text(name, tmp_path):
    text, shown = TEXTS[name]
    body = f"def make(device):\n    raise ValueError({text})\n"
    done = attempt(tmp_path, body, name="make")
    assert done.returncode == 4
    assert shown in done.stderr
    assert len(done.stderr) < 3000
    assert "\x1b" not in done.stderr


def test_a_refusal_that_the_code_turns_into_another_error_is_named(tmp_path):
    body = (
        "def f(x):\n"
        "    try:\n        x.sum().item()\n"
        "    except Exception as error:\n        raise RuntimeError('mine') from error\n"
        "def make(device):\n    return f, (torch.ones(3, device=device),)\n"
    )
    done = attempt(tmp_path, body, name="make")
    assert done.returncode == 4
    assert "not permitted when a stream is capturing" in done.stderr
    assert f"model.py:{line_of(body, '.item()')}" in done.stderr


def test_a_name_that_is_not_utf_8_is_refused(tmp_path):
    name = b"model-\xff.py".decode(errors="surrogateescape")
    (tmp_path / name).write_text("def build(device): ...\n")
    done = cgtool("capture", f"{name}:build", cwd=tmp_path)
    assert done.returncode == 2
    assert "not a name in UTF-8" in done.stderr


@pytest.mark.parametrize("command", ["check", "verify"])
def test_a_program_may_run_under_cprofile(command, tmp_path):
    code = (
        "import cProfile, torch\n"
        "profile = cProfile.Profile()\nprofile.enable()\n"
        "def make(device):\n"
        "    return lambda x: torch.relu(x) * 2, (torch.ones(3, device=device),)\n"
    )
    (tmp_path / "profiled.py").write_text(code)
    done = run_fresh_cgtool(command, "profiled.py:make", "--device", "simulated", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("warmup", ["3", "4"])
def test_a_backward_that_only_some_calls_have(warmup, tmp_path):
    body = (
        "def make(device):\n"
        "    weight = torch.nn.Parameter(torch.ones(4, device=device))\n"
        "    calls = [0]\n"
        "    def f(x):\n"
        "        calls[0] += 1\n"
        "        weight.requires_grad_(calls[0] % 2 == 0)\n"
        "        return x * weight\n"
        "    return f, (torch.ones(4, device=device),)\n"
    )
    done = attempt(tmp_path, body, "--warmup-iters", warmup, name="make")
    assert done.returncode == 0, done.stderr
