"""``cgtool profile`` of saved captures, and what it says where it cannot measure."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from cgtool.model.capture_file import write
from tests.builders import small, timed
from tests.forked_workers import run_cgtool

ROOT = Path(__file__).resolve().parent.parent.parent
RECORDED = ROOT / "samples" / "captures" / "profile-train_step.cgt"
UNTIMED = ROOT / "samples" / "captures" / "train_step.cgt"
SIMULATED = ROOT / "tests" / "gold" / "captures" / "mlp-separate-simulated.cgt"
RAW = {"0.dot": "digraph {}"}
TABLES = ["line", "module", "op", "kernel", "node"]


@pytest.fixture
def run(cgtool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """``cgtool profile``, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return partial(cgtool, "profile")


def test_a_saved_profile_is_shown_again(run):
    code, out, err = run(RECORDED)
    assert (code, err) == (0, "")
    assert out.splitlines()[1].startswith(
        "A CUDA graph makes this 9.9x faster (95% CI 9.3x to 10.1x)"
    )
    for title in ("Replays", "Time by line", "Time by module", "Critical path and overlap"):
        assert title in out


def test_one_table_instead_of_the_overview(run):
    code, out, _ = run(RECORDED, "--by", "kernel", "--top", 3)
    assert code == 0
    assert "Time by kernel" in out
    assert "Time by line" not in out
    assert "Replays" not in out
    assert " more " in out


def test_json_has_every_row_of_every_table(run):
    _, out, _ = run(RECORDED, "--format", "json")
    document = json.loads(out)
    assert (document["schema"], document["schema_version"]) == ("cgtool-profile", 2)
    assert [table["by"] for table in document["tables"]] == TABLES
    work = document["replays"][0]["work_ns"]
    for table in document["tables"]:
        assert table["left_out"] == 0
        assert sum(row["total_ns"] for row in table["rows"]) == work
    assert document["gain"]["answer"] == "yes"
    _, out, _ = run(RECORDED, "--format", "json", "--by", "op", "--top", 2)
    (table,) = json.loads(out)["tables"]
    assert (table["by"], len(table["rows"])) == ("op", 2)


def test_nodes_and_gaps_are_the_replay_that_was_measured_without_a_profiler(run):
    document = json.loads(run(RECORDED, "--format", "json")[1])
    for replay in document["replays"]:
        whole = replay["busy_ns"] + replay["gaps_ns"] + replay["around_ns"]
        assert whole == pytest.approx(replay["replay_ns"], rel=0.02)


def test_a_trace_in_a_file(run, tmp_path: Path):
    target = tmp_path / "trace.json"
    assert run(RECORDED, "--format", "perfetto", "-o", target)[:2] == (0, "")
    assert len(json.loads(target.read_bytes())["traceEvents"]) > 100


@pytest.mark.parametrize("by", TABLES)
def test_every_table_of_a_capture_without_any_profile_but_the_nodes(run, tmp_path: Path, by):
    path = tmp_path / "small.cgt"
    write(path, timed(small()), RAW)
    code, out, _ = run(path, "--by", by)
    assert code == 0
    assert "Cannot tell whether a CUDA graph helps" in out
    assert f"Time by {by}" in out


@pytest.mark.parametrize(
    ("path", "why"),
    [(UNTIMED, "measured on a GPU"), (SIMULATED, "made on the simulated device")],
)
def test_a_capture_without_times(run, path, why):
    code, out, err = run(path)
    assert (code, out) == (3, "")
    assert f"{path} has no node times" in err
    assert why in err
    assert "cgtool profile samples/" in err


def test_a_trace_needs_starts(run, tmp_path: Path):
    from msgspec import structs

    capture = timed(small())
    graphs = tuple(
        structs.replace(
            graph, nodes=tuple(structs.replace(node, start_ns=None) for node in graph.nodes)
        )
        for graph in capture.graphs
    )
    path = tmp_path / "small.cgt"
    write(path, structs.replace(capture, graphs=graphs), RAW)
    code, out, err = run(path, "--format", "perfetto")
    assert (code, out) == (3, "")
    assert "has no start times of nodes" in err
    assert run(path)[0] == 0


@pytest.mark.parametrize("option", [["--device", "cuda"], ["--rounds", "3"], ["--save", "x.cgt"]])
def test_an_option_that_a_saved_capture_cannot_heed(run, option):
    code, out, err = run(RECORDED, *option)
    assert (code, out) == (2, "")
    assert f"{option[0]} applies where an ENTRY is captured or measured" in err


def test_a_file_that_is_not_there(run):
    code, out, err = run("nothing.cgt")
    assert (code, out) == (2, "")
    assert "nothing.cgt" in err


def test_without_a_gpu(run, tmp_path: Path):
    (tmp_path / "model.py").write_text("import torch\n\ndef f(x):\n    return x + 1\n")
    entry = ["model.py:f", "--input", "x=float32[4]", "--device", "simulated"]
    code, out, err = run(*entry)
    assert (code, out) == (3, "")
    assert "profile needs a GPU (" in err
    assert "run it on a machine with an NVIDIA GPU" in err
    assert not list(tmp_path.glob("*.cgt"))


@pytest.mark.parametrize("command", ["bench", "profile"])
@pytest.mark.parametrize("spec", ["nothere.py:build", "model.py", "a.cgt:build"])
def test_a_missing_entry_is_reported_without_a_gpu_too(
    command: str, spec: str, tmp_path: Path
) -> None:
    done = run_cgtool(command, spec, cwd=tmp_path)
    assert done.returncode == 2
    assert "GPU" not in done.stderr
    assert list(tmp_path.iterdir()) == []
