"""The source that is quoted is that of the capture, whatever becomes of the files."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import msgspec
import pytest

from cgtool.model import capture_file
from cgtool.model.capture import Capture, Frame
from cgtool.model.sources import read_sources
from tests.cli.conftest import Cgtool
from tests.forked_workers import run_cgtool
from tests.html.test_packing import unpacked

MODEL = """\
import torch

def build(device):
    model = torch.nn.Linear(8, 8).to(device)
    def forward(x):
        return model(x).relu()
    return forward, (torch.randn(4, 8, device=device),)
"""
LINE = "        return model(x).relu()"
PROGRAM = """\
import torch
x = torch.zeros(3, device="cuda")
for i in range(3):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + i
{end}
"""


@pytest.fixture
def captured(cgtool: Cgtool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A capture in the current folder whose model.py has had lines inserted since."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    code, _, error = cgtool("capture", "model.py:build", "--device", "simulated", "-o", "a.cgt")
    assert code == 0, error
    file.write_text(f"# one\n# two\n# three\n{MODEL}")
    return tmp_path / "a.cgt"


def timed(path: Path) -> Capture:
    """The capture as if its nodes had been timed."""
    capture = capture_file.read(path)
    graphs = tuple(
        msgspec.structs.replace(
            graph,
            nodes=tuple(
                msgspec.structs.replace(node, duration_ns=1000, start_ns=2000 * node.id)
                for node in graph.nodes
            ),
        )
        for graph in capture.graphs
    )
    capture_file.write(path, msgspec.structs.replace(capture, graphs=graphs))
    return capture


@pytest.mark.parametrize("is_gone", [False, True])
def test_the_report_shows_the_lines_of_the_capture(
    cgtool: Cgtool, captured: Path, is_gone: bool
) -> None:
    if is_gone:
        (captured.parent / "model.py").unlink()
    assert cgtool("report", captured, "-o", "page.html")[0] == 0
    [block] = re.findall(r'id="data">([^<]*)<', Path("page.html").read_text())
    [tree] = unpacked(block)[0]["captures"]
    [file] = [each for each in tree["files"] if each["path"].endswith("model.py")]
    assert file["lines"] == MODEL.splitlines()
    assert file["numbers"] == list(range(1, 8))


def test_a_profile_and_its_trace_quote_the_lines_of_the_capture(
    cgtool: Cgtool, captured: Path
) -> None:
    timed(captured)
    _, shown, _ = cgtool("profile", captured, "--by", "line")
    assert f"{LINE.strip()}" in shown
    _, shown, _ = cgtool("profile", captured, "--format", "json")
    [table] = [each for each in json.loads(shown)["tables"] if each["by"] == "line"]
    assert {row["source"] for row in table["rows"]} == {LINE.strip()}
    _, shown, _ = cgtool("profile", captured, "--format", "perfetto")
    quoted = [event.get("args", {}).get("source") for event in json.loads(shown)["traceEvents"]]
    assert set(filter(None, quoted)) == {LINE.strip()}


def test_a_gate_annotates_no_line_that_has_moved(cgtool: Cgtool, captured: Path) -> None:
    gate = ("gate", captured, "--max-nodes", 1, "--format", "github")
    code, shown, _ = cgtool(*gate)
    assert code == 1
    assert "::error title=" in shown
    _, shown, _ = cgtool(*gate[:-2])
    assert "model.py has changed since the capture: its lines are not annotated" in shown
    (captured.parent / "model.py").write_text(MODEL)
    _, shown, _ = cgtool(*gate)
    assert "::error file=model.py,line=6,title=" in shown


def test_a_saved_run_quotes_its_lines_and_none_that_changed_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "same.py").write_text(PROGRAM.format(end=""))
    (tmp_path / "edited.py").write_text(
        PROGRAM.format(end="open(__file__, 'r+').write('# another line\\n')")
    )
    for name, line in (("same", "    with torch.cuda.graph(graph):"), ("edited", "")):
        done = run_cgtool("run", "--device", "simulated", f"{name}.py", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        (tmp_path / f"{name}.py").write_text("# one more\n" * 9)
        done = run_cgtool("run", f"{name}-run.cgt", "--format", "json", cwd=tmp_path)
        [finding] = json.loads(done.stdout)["findings"]
        assert (finding["code"], finding.get("source", "")) == ("graph-never-replayed", line)
    capture = capture_file.read(tmp_path / "edited-run.cgt")
    assert [each.absent for each in capture.sources if each.file.endswith("edited.py")] == [
        "changed after the process that ran it had started"
    ]


def test_what_is_saved_has_a_size(tmp_path: Path) -> None:
    """Whole files of the user, the lines around those that are used of libraries and of large
    files, and nothing of what cannot be quoted."""
    library = tmp_path / "site-packages" / "lib.py"
    library.parent.mkdir()
    user, large, wide = (tmp_path / f"{name}.py" for name in ("user", "large", "wide"))
    for file, lines in ((user, 30), (library, 30), (large, 30_000)):
        file.write_text("".join(f"line {number}\n" for number in range(1, lines + 1)))
    wide.write_text("#" * (5 << 20))
    os.mkfifo(tmp_path / "pipe.py")
    files = [str(user), str(library), str(large), str(wide), str(tmp_path / "pipe.py"), "a\0b", ""]
    frames = [Frame(file, line, "f") for file in files for line in (8, 12, 25)]
    saved = {source.file: source for source in read_sources(frames, time.time_ns())}
    shape = {
        file: [(block.first, len(block.lines)) for block in source.blocks]
        for file, source in saved.items()
    }
    assert shape[str(user)] == [(1, 30)]
    assert shape[str(library)] == [(3, 15), (20, 11)]
    assert shape[str(large)] == [(3, 15), (20, 11)]
    assert saved[str(library)].blocks[0].lines[0] == "line 3"
    assert saved[str(wide)].absent == "too large to be saved"
    for file in files[4:]:
        assert saved[file].absent == "not found"


def test_relative_names_begin_where_the_program_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "train.py").write_text("right = 1\n")
    (tmp_path / "train.py").write_text("wrong = 1\n")
    monkeypatch.chdir(tmp_path)
    frames = [Frame("train.py", 1, "<module>")]
    [source] = read_sources(frames, time.time_ns(), str(tmp_path / "there"))
    assert (source.file, source.blocks[0].lines) == ("train.py", ("right = 1",))
