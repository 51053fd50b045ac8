"""``cgtool dump``: what it writes, where, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import xml.dom.minidom
from pathlib import Path

import msgspec
import pytest

from cgtool.cli.app import main
from cgtool.model.capture import Capture, Frame, Graph, Node, Origin
from cgtool.model.capture_file import write
from tests.builders import capture, chain, hostile, huge, nested, small

RAW = "digraph dot {\n  graph_1_node_0 -> graph_1_node_1;\n}\n"


class Done:
    """The output and files of one run."""

    def __init__(self, code: int, out: bytes, err: str) -> None:
        self.code, self.bytes, self.out, self.err = code, out, out.decode(errors="replace"), err


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch):
    """Run the command in this process."""

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["cgtool", "dump", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        out, err = capfdbinary.readouterr()
        assert b"Traceback" not in err
        assert b"bug in cgtool" not in err, err
        return Done(code, out, err.decode())

    return run


def save(folder: Path, capture: Capture, raw: str | None = None) -> Path:
    path = folder / "a.cgt"
    write(path, capture, {} if raw is None else {"0.dot": raw})
    return path


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save(tmp_path, small(), RAW)


def test_dot_is_the_default(run, saved: Path) -> None:
    assert run(saved).out == run(saved, "--dot").out
    assert run(saved).out == (Path(__file__).parent.parent / "gold" / "small.dot").read_text()


def test_svg_and_png_go_to_a_file(run, saved: Path, tmp_path: Path) -> None:
    done = run(saved, "--svg", "-o", tmp_path / "a.svg")
    assert (done.code, done.out, done.err) == (0, "", "")
    xml.dom.minidom.parse(str(tmp_path / "a.svg"))
    assert run(saved, "--png", "-o", tmp_path / "a.png").code == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert run(saved, "--png").bytes.startswith(b"\x89PNG")


def test_the_name_of_the_file_chooses_the_format(run, saved: Path, tmp_path: Path) -> None:
    begins = {
        ".svg": b"<?xml",
        ".PNG": b"\x89PNG",
        ".json": b"{",
        ".dot": b"digraph",
        "": b"digraph",
    }
    for suffix, begin in begins.items():
        file = tmp_path / f"picture{suffix}"
        assert run(saved, "-o", file).code == 0
        assert file.read_bytes().startswith(begin)
    done = run(saved, "--svg", "-o", tmp_path / "other.png")
    assert (done.code, (tmp_path / "other.png").exists()) == (2, False)
    assert "--svg -o" in done.err
    assert run(saved, "--raw", "-o", tmp_path / "raw.dot").code == 0
    assert run(saved, "--json", "-o", tmp_path / "json.txt").code == 0


def test_pdf_takes_graphviz(run, saved: Path, tmp_path: Path) -> None:
    """The layout program that pip installs writes none."""
    done = run(saved, "-o", tmp_path / "graph.pdf")
    if shutil.which("dot"):
        assert (tmp_path / "graph.pdf").read_bytes().startswith(b"%PDF")
    else:
        assert (done.code, (tmp_path / "graph.pdf").exists()) == (2, False)
        assert "cannot write PDF\n  fix: install Graphviz" in done.err


def test_json_is_the_only_thing_on_standard_output(run, saved: Path) -> None:
    done = run(saved, "--json")
    assert [graph["name"] for graph in json.loads(done.out)["graphs"]] == ["forward", "backward"]
    assert done.err == ""


def test_raw_is_the_drivers_own_text(run, saved: Path) -> None:
    assert run(saved, "--raw").out == RAW


def test_raw_of_a_simulated_capture_says_why_there_is_none(run, tmp_path: Path) -> None:
    done = run(save(tmp_path, capture(nested().graphs, simulated=True)), "--raw")
    assert done.code == 2
    assert "no debug_dump text" in done.err
    assert "simulated device" in done.err


def test_a_selection(run, saved: Path) -> None:
    done = run(saved, "--json", "--select", "type=kernel", "--select", "module=layers.0.*")
    graphs = json.loads(done.out)["graphs"]
    assert [[node["id"] for node in graph["nodes"]] for graph in graphs] == [[0, 1], [3]]
    done = run(saved, "--select", "module=layers.0,type=kernel", "--graph", "forward")
    assert "forward" in done.out
    assert "backward" not in done.out


def test_graphs_by_name_phase_and_number_with_their_bodies(run, tmp_path: Path) -> None:
    path = save(tmp_path, nested())
    for name, count in (("step", 3), ("0", 3), ("1", 2), ("2", 1), ("step/node 1", 2)):
        assert len(json.loads(run(path, "--json", "--graph", name).out)["graphs"]) == count


def test_a_depth_draws_a_row_for_each_module_and_says_so_in_the_picture(run, saved: Path) -> None:
    done = run(saved, "--depth", "2")
    assert "12 nodes in 8 rows: modules to depth 2" in done.out
    assert done.err == ""


def test_nodes_outside_modules_are_grouped_by_function(run, tmp_path: Path) -> None:
    frames = tuple(Frame("/home/me/train.py", line, "train_step") for line in range(20))
    origins = tuple(Origin(f"aten::op{line}", None, None, (line,)) for line in range(20))
    nodes = tuple(Node(at, "empty", at) for at in range(20))
    graph = Graph("step", "step", nodes=nodes, edges=chain(20))
    path = save(tmp_path, capture([graph], frames=frames, origins=origins))
    out = run(path, "--depth", "1").out
    assert "20 nodes in 1 row: modules to depth 1" in out
    assert "train_step (train.py)" in out


def test_what_does_not_fit_a_screen_is_folded_and_said_and_can_be_expanded(
    run, tmp_path: Path
) -> None:
    path = save(tmp_path, huge(3000, layers=4))
    done = run(path)
    assert done.code == 0
    assert done.err.startswith("3,000 nodes in 40 rows: modules to depth 4; --expand")
    assert "3,000 nodes in 40 rows" in done.out
    assert run(path, "--quiet").err == ""
    expanded = run(path, "--expand")
    assert expanded.out.count("fillcolor") > 3000
    assert expanded.err == ""


LAYERS = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.attention = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)
        self.mlp = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16), nn.Dropout(0.1))

    def forward(self, x):
        q, k, v = self.attention(self.norm(x)).chunk(3, -1)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.mlp(x)

def build(device):
    model = nn.Sequential(nn.Embedding(32, 16), *(Block() for _ in range(24)), nn.Linear(16, 32))
    optimizer = torch.optim.AdamW(model.to(device).parameters(), capturable=True, foreach=True)
    tokens = torch.zeros(2, 8, dtype=torch.long, device=device)
    def step():
        optimizer.zero_grad()
        model(tokens).sum().backward()
        optimizer.step()
    return step
"""


def test_a_training_step_of_24_layers_fits_a_screen(run, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(LAYERS)
    picture = tmp_path / "model.png"
    done = run(f"{tmp_path}/model.py:build", "--device", "simulated", "-o", picture)
    assert done.code == 0, done.err
    assert "repeated parts drawn once; --expand draws every node" in done.err
    # The size is in the first chunk of a PNG.
    width, height = struct.unpack(">II", picture.read_bytes()[16:24])
    assert width < 1920
    assert height < 1200


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--dot", "--svg"], 2, "--dot and --svg cannot be used together"),
        (["--json", "--raw", "--png"], 2, "cannot be used together"),
        (["--select", "color=red"], 2, "there is no field 'color'"),
        (["--select", "module=none"], 2, "no node matches"),
        (["--graph", "sideways"], 2, "the capture has forward, backward"),
        (["--raw", "--select", "type=kernel"], 2, "which --select cannot filter"),
        (["--json", "--depth", "1"], 2, "--depth is for pictures"),
        (["--json", "--expand"], 2, "--expand is for pictures"),
        (["--color", "time"], 3, "has no node times"),
        (["--color", "pink"], 2, "pink"),
        (["--depth", "-1"], 2, "--depth"),
        (["--raw", "--graph", "backward"], 2, "no debug_dump text"),
        (["-o", "/nowhere/at/all.dot"], 2, "cannot write /nowhere/at/all.dot"),
        (["-o", "/"], 2, "directory"),
        (["-o", "picture.jpg"], 2, "picture.jpg: there is no format .jpg"),
    ],
)
def test_wrong_use(run, saved: Path, arguments: list[str], code: int, words: str) -> None:
    done = run(saved, *arguments)
    assert done.code == code
    assert words in done.err
    if "--json" in arguments:
        assert json.loads(done.out)["error"]["exit_code"] == code
    else:
        assert done.out == ""


def test_a_message_lists_a_few_graphs_of_many(run, tmp_path: Path) -> None:
    one = huge(3, layers=1)
    done = run(save(tmp_path, msgspec.structs.replace(one, graphs=one.graphs * 40)), "--graph", "x")
    assert done.code == 2
    assert " and 68 more\n" in done.err
    assert "a number from 0 to 79" in done.err


def test_a_full_device(run, saved: Path) -> None:
    for form in ("--dot", "--json"):
        done = run(saved, form, "-o", "/dev/full")
        assert done.code == 2
        assert "No space left" in done.err


def test_a_png_is_not_written_to_a_terminal(run, saved: Path, monkeypatch) -> None:
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _self: True, raising=False)
    done = run(saved, "--png")
    assert done.code == 2
    assert "-o graph.png" in done.err


def test_no_such_file_and_no_such_thing(run, tmp_path: Path) -> None:
    for target in (tmp_path / "none.cgt", tmp_path, "what"):
        done = run(target)
        assert done.code == 2
        assert str(target) in done.err


def test_color_by_time_where_there_are_times(run, tmp_path: Path) -> None:
    recorded = nested()
    graph = recorded.graphs[0]
    nodes = tuple(msgspec.structs.replace(node, duration_ns=1500) for node in graph.nodes)
    graphs = (msgspec.structs.replace(graph, nodes=nodes), *recorded.graphs[1:])
    done = run(save(tmp_path, capture(graphs)), "--color", "time")
    assert done.code == 0
    assert "1.50 us" in done.out


@pytest.mark.parametrize("form", ["--dot", "--svg", "--json"])
def test_hostile_names(run, tmp_path: Path, form: str) -> None:
    done = run(save(tmp_path, hostile()), form)
    assert done.code == 0
    assert "\x1b" not in done.out
    assert "\x00" not in done.out


def test_it_imports_no_torch(saved: Path) -> None:
    script = (
        "import sys; from cgtool.cli.app import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "assert 'torch' not in sys.modules and 'rich' not in sys.modules"
    )
    subprocess.run(
        [sys.executable, "-c", script, "dump", str(saved), "--svg", "-o", os.devnull], check=True
    )
