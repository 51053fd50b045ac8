"""``cgtool.recording`` and ``cgtool.note``: what a block of code records of its process."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from cgtool.model import capture_file
from cgtool.model.ledger import Ledger, LedgerGraph

PROGRAM = """
import json, os, shutil, sys, threading, warnings

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in ("click", "graphviz", "graphviz_pure", "rapidfuzz", "rich", "typer", "yaml"):
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Missing())
import cgtool
imported = [name for name in sys.modules if name.startswith(("cgtool", "msgspec", "torch"))]
cgtool.note(batch=1)
imported += [name for name in sys.modules if name.startswith(("msgspec", "torch"))]
import torch

said = []
warnings.showwarning = lambda message, *_, **__: said.append(str(message))

def state():
    owners = torch.cuda.CUDAGraph, torch.cuda, torch.cuda.graphs, torch.Tensor, torch, threading
    return [dict(vars(owner)) for owner in owners], list(sys.meta_path)

kept = []

def graph(rows):
    x = torch.zeros(rows, 4, device="cuda")
    kept.append(x)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        x + 1
    return captured

def step(rows=16):
    captured = graph(rows)
    for wanted in (3, 5, 5, 16):
        cgtool.note(rows=wanted)
        cgtool.note(padded_rows=rows, loss=[1])
        captured.replay()
    captured.replay()

def block(name):
    return cgtool.recording(name, device="simulated")

torch.zeros(1)
before = state()
with block("first.cgt") as first:
    step()
    with block("nested.cgt") as nested:
        step(32)
    child = os.fork()
    if child == 0:
        step(64)
    else:
        os.waitpid(child, 0)
if child == 0:
    os._exit(0)
after = state()
changed = [
    name
    for old, new in zip(before[0], after[0])
    for name in old.keys() | new.keys()
    if old.get(name) is not new.get(name) and not isinstance(new.get(name), type(sys))
]
try:
    with block("raised.cgt") as raised:
        step()
        raise KeyError("of the program")
except KeyError as error:
    message = str(error)

def in_a_thread():
    global threaded
    with block("thread.cgt") as threaded:
        step()

thread = threading.Thread(target=in_a_thread, name="server")
thread.start()
thread.join()
with cgtool.recording("nothing.cgt") as nothing:
    pass
refused = []
for name, device in (("/dev/null", "simulated"), (".", "simulated"), ("x.cgt", "cuda")):
    try:
        with cgtool.recording(name, device=device):
            refused.append("it has run")
    except cgtool.CgtoolError as error:
        refused.append(error.failure.message)
os.mkdir("gone")
try:
    with block("gone/x.cgt"):
        for file in os.scandir("gone"):
            shutil.rmtree(file)
        os.rmdir("gone")
except cgtool.CgtoolError as error:
    notes = error.__notes__
for run in (first, raised, threaded, nothing):
    os.rename(run.path, run.path.name)
print(json.dumps({
    "imported": imported, "changed": changed, "finders": before[1] == after[1], "error": message,
    "nested": nested.path, "said": said, "sentence": first.sentence, "shown": repr(first),
    "refused": refused, "notes": notes, "left": sorted(os.listdir()),
}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("block")


@pytest.fixture(scope="module")
def facts(folder: Path) -> dict[str, Any]:
    (folder / "program.py").write_text(textwrap.dedent(PROGRAM))
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def ledger(folder: Path, name: str) -> Ledger:
    found = capture_file.read(folder / name).ledger
    assert found is not None
    return found


def noted(graph: LedgerGraph) -> dict[tuple[tuple[str, float], ...], int]:
    return {tuple(zip(each.names, each.values, strict=True)): each.replays for each in graph.notes}


def test_cgtool_is_cheap_to_import_and_a_note_too(facts: dict[str, Any]) -> None:
    assert facts["imported"] == ["cgtool"]


def test_what_a_block_changed_is_restored(facts: dict[str, Any]) -> None:
    assert facts["changed"] == []
    assert facts["finders"]


def test_a_block_records_the_process_and_what_it_forks(facts: dict[str, Any], folder: Path) -> None:
    run = ledger(folder, "first.cgt")
    assert run.exit_status == 0
    assert [(each.process, each.replays) for each in run.graphs] == [(0, 5), (0, 5), (1, 5)]
    assert [process.forked for process in run.processes] == [False, True]
    assert facts["sentence"] == "3 graphs, 15 replays"
    assert facts["shown"].endswith("first.cgt: 3 graphs, 15 replays>")


def test_a_block_in_a_block_adds_nothing_and_says_so(facts: dict[str, Any]) -> None:
    assert facts["nested"] is None
    assert [text for text in facts["said"] if "adds nothing" in text] == [facts["said"][0]]


def test_a_block_that_raises_is_written(facts: dict[str, Any], folder: Path) -> None:
    assert facts["error"] == "'of the program'"
    run = ledger(folder, "raised.cgt")
    assert run.exit_status == 1
    assert [each.replays for each in run.graphs] == [5]


def test_a_block_of_another_thread(facts: dict[str, Any], folder: Path) -> None:
    (graph,) = ledger(folder, "thread.cgt").graphs
    assert (graph.thread, graph.replays) == ("server", 5)


def test_without_a_gpu_nothing_is_recorded(facts: dict[str, Any], folder: Path) -> None:
    run = ledger(folder, "nothing.cgt")
    assert run.graphs == ()
    assert "no usable GPU" in run.lost[0]
    assert "no usable GPU" in facts["said"][-1]


def test_what_cannot_be_recorded_is_refused_before_the_block(facts: dict[str, Any]) -> None:
    device, folder, unknown = facts["refused"]
    assert device == "cannot write /dev/null: it is a device or a pipe, not a file"
    assert folder.endswith(": it is a directory")
    assert unknown == "device 'cuda' is not 'simulated'"


def test_a_folder_that_is_gone_is_not_what_is_left(facts: dict[str, Any]) -> None:
    note = facts["notes"][-1]
    assert note.endswith("x.cgt: No such file or directory")


def test_only_the_files_are_left(facts: dict[str, Any]) -> None:
    files = ["first.cgt", "nothing.cgt", "program.py", "raised.cgt", "thread.cgt"]
    assert facts["left"] == files


def test_notes_belong_to_the_next_replay(facts: dict[str, Any], folder: Path) -> None:
    run = ledger(folder, "first.cgt")
    assert noted(run.graphs[0]) == {
        (("rows", 3.0), ("padded_rows", 16.0)): 1,
        (("rows", 5.0), ("padded_rows", 16.0)): 2,
        (("rows", 16.0), ("padded_rows", 16.0)): 1,
    }
    assert all("`loss` is neither a number nor a text" in text for text in run.lost)
    assert len(run.lost) == 1


def test_under_run_a_block_adds_nothing(tmp_path: Path) -> None:
    text = """
    import cgtool
    for _ in range(2):
        with cgtool.recording("block.cgt", device="simulated") as block:
            import torch
            x = torch.zeros(4, device="cuda")
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                x + 1
            cgtool.note(rows=3)
            graph.replay()
    print(block.path)
    print(block)
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(text))
    done = subprocess.run(
        [sys.executable, "-m", "cgtool", "run", "-q", "--device", "simulated", "program.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (
        0,
        "None\n<recording without a file: adds nothing to the one in progress>\n",
    ), done.stderr
    assert done.stderr.count("adds nothing") == 1
    assert [noted(each) for each in ledger(tmp_path, "program-run.cgt").graphs] == [
        {(("rows", 3.0),): 1}
    ] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["program-run.cgt", "program.py"]


def test_a_block_that_never_ends_says_what_is_left(tmp_path: Path) -> None:
    text = "import cgtool; block = cgtool.recording('x.cgt', device='simulated'); block.__enter__()"
    done = subprocess.run(
        [sys.executable, "-c", text],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    (folder,) = tmp_path.iterdir()
    assert (done.returncode, done.stderr) == (0, (
        "cgtool.recording: Python ended before the block did; what was recorded is kept: "
        f"cgtool run {folder} -o FILE\n"
    ))  # fmt: skip
