"""``cgtool gate``: targets, budgets, baselines, formats, exit codes, on the command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest

from cgtool.analysis.gate.budgets import Budgets, from_options
from cgtool.analysis.gate.judge import Judged
from cgtool.analysis.gate.measured import measure
from cgtool.analysis.gate.metrics import METRICS
from cgtool.analysis.gate.verdict import FAIL, PASS, UNKNOWN
from cgtool.analysis.timing.regression import LOOKS
from cgtool.cli import gate_targets
from cgtool.cli.gate_project import find_project, project_budgets
from cgtool.cli.gate_targets import Base, Target
from cgtool.cli.workers import Measuring
from cgtool.model.baseline import read as read_baseline
from cgtool.model.capture import Capture
from cgtool.model.capture_file import read
from cgtool.model.failure import machine, user_code
from cgtool.model.measurements import Clock
from tests.analysis.test_gate import timed
from tests.test_docs import printed_by, shown_after

ROOT = Path(__file__).resolve().parent.parent.parent
CAPTURES = ROOT / "samples" / "captures"
SIMULATED = ROOT / "tests" / "gold" / "captures" / "mlp-separate-simulated.cgt"
TRANSFORMER, MLP, GAN = (CAPTURES / f"{name}.cgt" for name in ("transformer", "mlp", "gan"))
BENCH = CAPTURES / "mlp-bench.cgt"
CODE = """
import torch

def build(device):
    model = torch.nn.Linear(4, 4, device=device)
    return model, (torch.randn(2, 4, device=device),)

def guilty(device):
    return (lambda x: x / x.max().item()), (torch.randn(4, device=device),)
"""


@pytest.fixture
def run(cgtool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """``cgtool gate``, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    return partial(cgtool, "gate")


def verdicts(text: str) -> dict[str, str]:
    (target,) = json.loads(text)["targets"]
    return {verdict["metric"]: verdict["verdict"] for verdict in target["verdicts"]}


# --- budgets


def test_the_example_of_the_documentation(run) -> None:
    code, out, err = run(TRANSFORMER, "--max-nodes", 400, "--max-pool-mib", 64)
    assert (code, err) == (1, "")
    assert re.search(r"pool-mib +104 MiB +at most 64 MiB +fail +40 MiB over", out)
    assert re.search(r"nodes +190 +at most 400 +pass", out)
    assert "65 MiB: cuBLAS workspace at transformer.py:30" in out
    assert out.endswith("failed: 1 of 2 figures\n")
    code, out, _ = run(TRANSFORMER, "--max-nodes", 190, "--max-pool-mib", 104)
    assert (code, out.splitlines()[-1]) == (0, "passed: 2 figures")


LAYERS = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.h = torch.nn.ModuleList(torch.nn.Linear(256, 256) for _ in range({count}))
    def forward(self, x):
        for layer in self.h:
            x = layer(x)
        return x
def build(device):
    return Net().to(device), (torch.ones(512, 256, device=device),)
"""


@pytest.mark.parametrize("baseline", ["before.cgt", "before.json"])
def test_memory_is_explained_by_what_the_baseline_does_not_have(
    cgtool, run, tmp_path, monkeypatch, baseline
) -> None:
    """The workspaces of cuBLAS, the largest blocks of both sides, are not the reason."""
    monkeypatch.chdir(tmp_path)
    for name, count in (("before", 3), ("after", 4)):
        Path("model.py").write_text(LAYERS.format(count=count))
        cgtool("capture", "model.py:build", "--device", "simulated", "-o", f"{name}.cgt")
    run("before.cgt", "--save-baseline", "before.json")
    _, out, _ = run("after.cgt", "--baseline", baseline, "--format", "github")
    (shown,) = [line for line in out.splitlines() if "live-mib fail" in line]
    _, module, *blocks = shown.split("%0A")
    assert module == "module h.3 is new"
    assert all(" in h.3 at model.py:9" in block for block in blocks)
    assert "file=model.py,line=9," in shown
    assert "cuBLAS" not in out


def test_without_a_target_every_entry_of_the_project_is_judged(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run()[0] == 2
    source = (
        "import torch\ndef build(device):\n"
        "    return lambda x: x * 2, (torch.ones(3, device=device),)\n"
    )
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.py").write_text(source)
    (tmp_path / "models" / "b.py").write_text(source)
    (tmp_path / "pyproject.toml").write_text(
        '[tool.cgtool.gate."models/a.py:build"]\nmax-nodes = 1\n'
        '[tool.cgtool.gate."models/b.py:build"]\nmax-nodes = 0\n'
    )
    monkeypatch.chdir(tmp_path / "models")
    code, out, _ = run("--device", "simulated", "--format", "json")
    targets = json.loads(out)["targets"]
    assert code == 1
    assert [target["entry"] for target in targets] == ["a.py:build", "b.py:build"]
    assert [target["verdicts"][0]["verdict"] for target in targets] == ["pass", "fail"]


def test_several_targets_and_phases(run) -> None:
    code, out, _ = run(
        TRANSFORMER, MLP, "--max-nodes", "backward=139", "--min-nodes", 20, "--format", "json"
    )
    first, second = json.loads(out)["targets"]
    assert code == 1
    assert [target["entry"] for target in (first, second)] == [
        "samples/transformer.py:build",
        "samples/mlp.py:build",
    ]
    assert [(verdict["metric"], verdict["verdict"]) for verdict in first["verdicts"]] == [
        ("nodes.backward", FAIL),
        ("nodes", PASS),
    ]
    assert {verdict["verdict"] for verdict in second["verdicts"]} == {PASS}


def test_two_captures_of_one_entry_are_distinguished(run) -> None:
    held = ["--max-nodes", 3, "--format"]
    _, out, _ = run(MLP, BENCH, *held, "table")
    for file in (MLP, BENCH):
        assert f"Gate of samples/mlp.py:build ({file}), NVIDIA H200" in out.replace("\n", "")
    _, out, _ = run(MLP, BENCH, *held, "junit")
    names = [case.get("classname") for case in ET.fromstring(out).findall(".//testcase")]
    assert len(set(names)) == 2
    _, out, _ = run(MLP, BENCH, *held, "benchmark-action")
    names = [figure["name"] for figure in json.loads(out)]
    assert len(set(names)) == len(names)


def test_a_metric_that_was_not_measured_is_undecided(run) -> None:
    code, out, _ = run(MLP, "--max-replay-us", 50, "--max-nodes", 30, "--format", "json")
    assert code == 5
    assert verdicts(out) == {"replay-us": UNKNOWN, "nodes": PASS}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "samples/mlp.py:build has no budget"),
        (["--max-nodes", "4MiB"], "'4MiB' is not a number"),
        (["--max-nodes", "-3"], "negative"),
        (["--max-nodes", "3", "--min-nodes", "4"], "more than --max-nodes"),
        (["--max-increase", "nodez=1", "--baseline", MLP], "did you mean nodes?"),
        (["--max-nodes", "3", "--format", "jnit"], "did you mean junit?"),
        (["--max-nodes", "3", "--format", "json=", ], "the file name is missing"),
        (["--max-nodes", "3", "--format", "json", "--format", "junit"], "not both"),
        (["--max-nodes", "3", "--format", "json", "--format", "json"], "not both"),
        (["--max-nodes", "3", "--format", "table", "--format", "github", "-o", "x"], "one format"),
        (["--max-nodes", "3", "--format", "table=x", "-o", "y"], "for none"),
    ],
)  # fmt: skip
def test_wrong_use(run, arguments: list[object], words: str) -> None:
    code, out, err = run(MLP, *arguments)
    assert (code, bool(out)) == (2, "json" in arguments)
    assert words in err
    assert "Traceback" not in err


def test_an_unknown_option(run) -> None:
    code, _, err = run(MLP, "--max-kernles", 3)
    assert code == 2
    assert "--max-kernels" in err


def test_invalid_targets(run, tmp_path: Path) -> None:
    (tmp_path / "junk.cgt").write_bytes(b"junk")
    (tmp_path / "other.json").write_text('{"schema": "cgtool-summary", "schema_version": 1}')
    (tmp_path / "text").write_text("text")
    for name, words in (
        ("nowhere.cgt", "no such file"),
        ("nowhere.json", "no such file"),
        ("nowhere", "no such file, and an ENTRY also names a function"),
        ("junk.cgt", "is not a capture file"),
        ("other.json", "its schema is 'cgtool-summary'"),
        ("text", "not a readable report"),
        (".", "is a folder"),
    ):
        code, out, err = run(name, "--max-nodes", 3)
        assert (code, out) == (2, ""), name
        assert words in err


# --- pyproject.toml


def test_budgets_from_pyproject_of_a_folder_above(run, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[tool.cgtool.gate]\nmax-nodes = 100\n"
        '[tool.cgtool.gate."samples/transformer.py:build"]\nmax-nodes = 190\n'
    )
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    code, out, _ = run(TRANSFORMER, MLP)
    assert (code, out.splitlines()[-1]) == (0, "passed: 2 figures")
    assert "at most 190" in out
    code, out, _ = run(TRANSFORMER, "--max-nodes", 5)
    assert code == 1
    assert "at most 190" not in out
    (tmp_path / "pyproject.toml").write_text("[tool.cgtool.gate]\nmax-node = 100\n")
    code, out, err = run(TRANSFORMER)
    assert (code, out) == (2, "")
    assert f"{tmp_path / 'pyproject.toml'}: [tool.cgtool.gate]: unknown key 'max-node'" in err
    assert "did you mean max-nodes?" in err


def test_a_failure_names_the_key_that_it_fails(run, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.cgtool.gate]\nmax-nodes.backward = 3\n")
    _, out, _ = run(MLP, "--format", "json")
    (verdict,) = json.loads(out)["targets"][0]["verdicts"]
    assert verdict["source"] == (
        f"{tmp_path / 'pyproject.toml'}: [tool.cgtool.gate] max-nodes.backward"
    )


def test_budgets_of_the_simulated_device(run, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[tool.cgtool.gate]\nmax-kernels = 30\n[tool.cgtool.gate.simulated]\nmax-nodes = 17\n"
    )
    code, out, _ = run(SIMULATED, "--format", "json")
    assert (code, verdicts(out)) == (0, {"nodes": PASS})
    code, out, _ = run(MLP, "--format", "json")
    assert (code, verdicts(out)) == (0, {"kernels": PASS})


def test_tables_that_no_entry_has(run, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(CODE)
    table = '[tool.cgtool.gate]\nmax-nodes = 9\n[tool.cgtool.gate."{}"]\nmax-nodes = 1\n'
    (tmp_path / "pyproject.toml").write_text(table.format("modle.py:build"))
    code, out, err = run("model.py:build", "--device", "simulated")
    assert (code, out) == (2, "")
    assert 'did you mean [tool.cgtool.gate."model.py:build"]?' in err
    (tmp_path / "pyproject.toml").write_text(table.format("gone.py:train"))
    code, out, _ = run("model.py:build", "--device", "simulated", "--format", "json")
    assert code == 0
    assert "gone.py:train" in json.loads(out)["targets"][0]["notes"][-1]


# --- baselines


def test_a_saved_baseline_passes_and_another_capture_fails_it(run, tmp_path: Path) -> None:
    code, out, err = run(MLP, "--save-baseline", "base.json")
    assert (code, err) == (0, "saved base.json\n")
    assert "no budget or baseline" in out
    code, out, _ = run(BENCH, "--baseline", "base.json", "--format", "json")
    assert code == 0
    base = json.loads((tmp_path / "base.json").read_text())
    of_a_program = {"rerecords", "unused", "failed-captures"}
    assert not of_a_program & set(base["counts"])
    watched = {
        metric.name for metric in METRICS if metric.watched and metric.source == "capture"
    } - of_a_program
    assert verdicts(out) == dict.fromkeys(watched, PASS)
    base["counts"]["nodes"] -= 2
    base["ops"]["mm"] -= 2
    (tmp_path / "base.json").write_text(json.dumps(base))
    code, out, _ = run(BENCH, "--baseline", "base.json")
    assert code == 1
    assert re.search(r"nodes +25 +baseline 23 +fail +2 more", out)
    assert "+2 mm at mlp.py:23" in out
    for allowed in ("nodes=2", "nodes=9%"):
        assert run(BENCH, "--baseline", "base.json", "--max-increase", allowed)[0] == 0


def test_a_capture_serves_as_a_baseline(run) -> None:
    code, out, _ = run(MLP, "--baseline", BENCH, "--max-regression", "2%", "--format", "json")
    assert code == 5
    assert verdicts(out)["replay-us"] == UNKNOWN
    assert verdicts(out)["nodes"] == PASS
    assert run(MLP, "--baseline", BENCH)[0] == 0


def test_a_baseline_of_another_entry(run) -> None:
    code, out, err = run(MLP, "--baseline", GAN)
    assert (code, out) == (2, "")
    assert "is a baseline of samples/gan.py:build, not of samples/mlp.py:build" in err
    code, _, err = run(MLP, "--baseline", MLP, "--baseline", BENCH)
    assert code == 2
    assert "both baselines of samples/mlp.py:build" in err
    assert run(MLP, GAN, "--baseline", MLP, "--baseline", GAN)[0] == 0
    # Of two targets one has a baseline; the other needs something too.
    code, _, err = run(MLP, GAN, "--baseline", MLP)
    assert code == 2
    assert "samples/gan.py:build has no budget" in err


def test_a_baseline_of_the_simulated_device(run) -> None:
    code, out, _ = run(MLP, "--baseline", SIMULATED)
    assert code == 5
    assert "the baseline counts ops on the simulated device" in out


def test_a_baseline_that_pyproject_names(run, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.cgtool.gate]\nbaseline = "ci/base.json"\n')
    code, _, err = run(MLP)
    assert code == 2
    assert f"{tmp_path / 'ci' / 'base.json'}: no such file" in err
    assert "why: pyproject.toml names it as the baseline of" in " ".join(err.split())
    (tmp_path / "ci").mkdir()
    # Written for the first time, there is nothing to compare with yet.
    assert run(MLP, "--save-baseline", "ci/base.json")[0] == 0
    code, out, _ = run(MLP, "--format", "json")
    assert code == 0
    assert json.loads(out)["targets"][0]["baseline"] == str(tmp_path / "ci" / "base.json")
    code, _, err = run(GAN)
    assert code == 2
    assert "is a baseline of samples/mlp.py:build" in err


def test_bad_baselines(run, tmp_path: Path) -> None:
    for content, words in (
        (b"", "it is empty"),
        (b"{", "truncated"),
        (b'{"schema": "cgtool-gate", "schema_version": 1}', "its schema is 'cgtool-gate'"),
        (b'{"schema": "cgtool-baseline", "schema_version": 9}', "newer cgtool"),
    ):
        (tmp_path / "base.json").write_bytes(content)
        code, out, err = run(MLP, "--baseline", "base.json")
        assert (code, out) == (2, "")
        assert words in err
        assert "fix: " in err
    assert run(MLP, "--baseline", "nowhere.json")[0] == 2


def test_saving_is_for_one_entry_and_for_a_place_that_can_be_written(run) -> None:
    code, _, err = run(MLP, GAN, "--save-baseline", "x.json")
    assert code == 2
    assert "is for one entry" in err
    code, _, err = run(MLP, "--save-baseline", "no/x.json")
    assert code == 2
    assert "cannot write" in err


# --- formats


def test_several_formats_at_once(run, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    (tmp_path / "summary.md").write_text("# Before\n")
    formats = ["table", "github", "junit=gate.xml", "json=gate.json", "benchmark-action=bench.json"]
    given = [word for name in formats for word in ("--format", name)]
    code, out, _ = run(TRANSFORMER, "--max-nodes", 3, *given)
    assert code == 1
    assert re.search(r"nodes +190 +at most 3 +fail +187 over", out)
    assert "\n::error file=samples/transformer.py,line=" in out
    assert ET.parse(tmp_path / "gate.xml").find(".//failure") is not None
    assert json.loads((tmp_path / "gate.json").read_text())["schema"] == "cgtool-gate"
    rows = json.loads((tmp_path / "bench.json").read_text())
    assert {"name", "unit", "value"} <= rows[0].keys()
    summary = (tmp_path / "summary.md").read_text()
    assert summary.startswith("# Before\n## cgtool gate ❌")
    run(TRANSFORMER, "--max-nodes", 3, "--format", "github")
    assert (tmp_path / "summary.md").read_text().count("## cgtool gate") == 2


def test_a_summary_that_is_full_takes_no_more(run, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    (tmp_path / "summary.md").write_bytes(b"x" * (1024 << 10))
    assert run(MLP, "--max-nodes", 3, "--format", "github")[0] == 1
    assert (tmp_path / "summary.md").stat().st_size == 1024 << 10
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "no" / "summary.md"))
    code, _, err = run(MLP, "--max-nodes", 3, "--format", "github")
    assert code == 2
    assert "GITHUB_STEP_SUMMARY" in err


def test_a_place_that_cannot_be_written_costs_no_other(run, tmp_path: Path) -> None:
    formats = ["--format", "junit=/dev/full", "--format", "github", "--format", "json=gate.json"]
    code, out, err = run(MLP, "--max-nodes", 3, *formats)
    assert (code, err) == (2, "cgtool: cannot write /dev/full: No space left on device\n")
    assert "::error " in out
    assert json.loads((tmp_path / "gate.json").read_text())["verdict"] == FAIL


def test_output_and_quiet(run, tmp_path: Path) -> None:
    assert run(MLP, "--max-nodes", 30, "-q") == (0, "", "")
    assert run(MLP, "--max-nodes", 30, "-o", "gate.txt")[:2] == (0, "")
    assert "passed: 1 figure" in (tmp_path / "gate.txt").read_text()
    assert run(MLP, "--max-nodes", 3, "--format", "junit", "-o", "x.xml")[:2] == (1, "")
    ET.parse(tmp_path / "x.xml")


def test_a_folder_whose_name_is_not_utf8(run, tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    monkeypatch.chdir(folder)
    Path("pyproject.toml").write_text("[tool.cgtool.gate]\nmax-nodes = 3\n")
    for kind in ("table", "json", "junit", "github", "benchmark-action"):
        code, out, err = run(MLP, "--format", kind)
        assert (code, err) == (1, ""), kind
        assert out


# --- entries, on the simulated device


def test_an_entry_is_measured_as_its_budgets_need(run, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(CODE)
    budgets = ["--max-nodes", 8, "--max-findings", 0, "--max-mismatches", 0]
    code, out, err = run("model.py:build", "--device", "simulated", *budgets, "--format", "json")
    assert code == 0, err
    assert verdicts(out) == dict.fromkeys(("nodes", "findings", "mismatches"), PASS)
    code, out, _ = run("model.py:guilty", "--device", "simulated", "--max-findings", 0)
    assert code == 1
    assert re.search(r"findings +1 +at most 0 +fail +1 over", out)
    assert "error sync-item at model.py:9" in out
    # Its nodes cannot be counted: the code is not captured.
    code, out, err = run("model.py:guilty", "--device", "simulated", "--max-nodes", 3)
    assert (code, out) == (4, "")
    assert "model.py:9" in err


def test_an_entry_that_cannot_be_captured_is_an_error_in_every_format(
    run, tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "model.py").write_text(CODE)
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    formats = ["github", "junit=gate.xml", "json=gate.json", "table=gate.txt"]
    given = [word for name in formats for word in ("--format", name)]
    measured = ["--device", "simulated", "--max-nodes", 30]
    code, out, err = run("model.py:guilty", "model.py:build", *measured, *given)
    assert code == 4
    assert "model.py:9" in err
    suites = ET.parse(tmp_path / "gate.xml").getroot()
    assert (suites.get("tests"), suites.get("errors"), suites.get("failures")) == ("2", "1", "0")
    (case,) = (case for case in suites.iter("testcase") if case.find("error") is not None)
    assert (case.get("classname"), case.get("file"), case.get("line")) == (
        "model.py:guilty", "model.py", "9",
    )  # fmt: skip
    assert "sync-item" in case.find("error").text
    report = json.loads((tmp_path / "gate.json").read_text())
    assert report["verdict"] == "error"
    guilty, fine = report["targets"]
    assert (guilty["error"]["exit_code"], guilty["verdicts"]) == (4, [])
    assert guilty["error"]["what"] in err
    # The other one is judged all the same.
    assert (fine["error"], [verdict["verdict"] for verdict in fine["verdicts"]]) == (None, [PASS])
    assert "::error file=model.py,line=9,title=model.py%3Aguilty not measured::" in out
    assert "model.py:guilty was not measured" in (tmp_path / "gate.txt").read_text()
    assert "not measured: 1 of 2 targets, passed: 1 figure" in (tmp_path / "gate.txt").read_text()
    summary = (tmp_path / "summary.md").read_text()
    assert "## cgtool gate ❌ not measured: 1 of 2 targets" in summary
    assert "### model.py:guilty\n" in summary


def test_a_worker_that_dies_is_an_error_too(run, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("import os\ndef build(device):\n    os._exit(3)\n")
    given = ["--device", "simulated", "--max-nodes", 30, "--format", "junit=gate.xml"]
    code, out, err = run("model.py:build", *given, "--format", "benchmark-action=bench.json")
    assert (code, out) == (4, "")
    assert "os._exit(3)" in err
    (error,) = ET.parse(tmp_path / "gate.xml").iter("error")
    assert (error.get("type"), "os._exit(3)" in error.get("message")) == ("exit 4", True)
    # There is no figure to draw.
    assert not (tmp_path / "bench.json").exists()


def test_a_fault_of_our_own_is_an_error_too(run, tmp_path: Path, monkeypatch) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise RuntimeError("it broke")

    monkeypatch.setattr(gate_targets, "measure", breaks)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code, out, err = run(MLP, "--max-nodes", 30, "--format", "json")
    assert code == 70
    assert "this is a bug in cgtool" in err
    assert "it broke" in next(tmp_path.glob("cgtool-bug-*.txt")).read_text()
    (target,) = json.loads(out)["targets"]
    assert target["error"]["what"] == "a bug in cgtool: RuntimeError: it broke"
    assert target["files"] == [str(MLP)]


def test_times_of_an_entry_without_a_gpu_are_undecided(run, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(CODE)
    code, out, _ = run("model.py:build", "--device", "simulated", "--min-speedup", 2)
    assert code == 5
    assert re.search(r"speedup +— +at least 2x +cannot tell", out)


def test_gpu_metrics_are_not_required_without_a_gpu(run, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "model.py").write_text(CODE)
    project = tmp_path / "pyproject.toml"
    simulated = "[tool.cgtool.gate.simulated]\nmax-nodes = 9\n"
    for gpu in ("[tool.cgtool.gate]\nbaseline = 'gpu.json'\n", ""):
        project.write_text(gpu + simulated)
        code, out, err = run("model.py:build")
        assert (code, err) == (0, "")
        assert re.search(r"nodes +\d +at most 9 +pass", out)
    project.write_text("[tool.cgtool.gate]\nmax-nodes = 9\nbaseline = 'gpu.json'\n")
    code, out, err = run("model.py:build")
    assert (code, out) == (2, "")
    assert "gpu.json: no such file" in err


def test_reports_belong_to_their_entry(cgtool, run, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(CODE)
    arguments = ["check", "model.py:guilty", "--device", "simulated", "--format", "json"]
    assert cgtool(*arguments, "-o", "check.json")[0] == 1
    code, out, _ = run("check.json", "--max-findings", 0, "--format", "json")
    assert (code, verdicts(out)) == (1, {"findings": FAIL})
    code, out, _ = run(MLP, "check.json", "--max-findings", 0, "--format", "json")
    first, second = json.loads(out)["targets"]
    assert [verdict["verdict"] for verdict in first["verdicts"]] == [UNKNOWN]
    assert [verdict["verdict"] for verdict in second["verdicts"]] == [FAIL]
    # The same report as one of the transformer's capture: one target.
    report = json.loads((tmp_path / "check.json").read_text())
    report["entry"]["spec"] = "samples/mlp.py:build"
    (tmp_path / "check.json").write_text(json.dumps(report))
    code, out, _ = run(
        MLP, "check.json", "--max-findings", 0, "--max-nodes", 30, "--format", "json"
    )
    assert (code, verdicts(out)) == (1, {"findings": FAIL, "nodes": PASS})


# --- measuring on


class FakeMeasuring(Measuring):
    """Workers whose runs this test makes: no GPU is here, and what is tested is when to stop."""

    def __init__(
        self,
        replay_us: float,
        spread: float,
        *,
        max_runs: int = 12,
        gpu: bool = True,
        clocks: Sequence[Clock | None] = (),
    ):
        super().__init__(quiet=True, folder=Path(), max_seconds=100.0, max_runs=max_runs)
        self.replay_us, self.spread, self.gpu = replay_us, spread, gpu
        self.clocks = iter(clocks)
        self.runs: list[str] = []

    def ahead(self, count: int) -> AbstractContextManager[int]:
        return nullcontext(count)

    def bench(self, spec: str) -> Capture:
        if not self.gpu:
            raise machine("bench needs a GPU: there is none")
        self.runs.append("bench")
        clock = next(self.clocks, None)
        return timed(self.replay_us, spread=self.spread, seed=len(self.runs), clock=clock)

    def capture(self, spec: str) -> Capture:
        self.runs.append("capture")
        return read(SIMULATED)


def judged(measuring: Measuring, held: Budgets, base: Base | None = None, *, save: bool = False):
    target = Target("model.py:build", live=True)
    return gate_targets.judge(target, lambda simulated: (held, base), measuring, save=save)


def base_of(replay_us: float, runs: int) -> Base:
    capture = timed(replay_us, runs=runs, spread=0.004, seed=99)
    return Base(Path("base.json"), measure([capture]).values)


def verdict_of(judgment: tuple[Judged, object], metric: str) -> str:
    return next(verdict.verdict for verdict in judgment[0].verdicts if verdict.metric == metric)


def test_a_clear_case_takes_no_more_runs_than_it_needs() -> None:
    clear, near = FakeMeasuring(30, 0.005), FakeMeasuring(30, 0.005)
    assert verdict_of(judged(clear, from_options({"max-replay-us": ["60"]})), "replay-us") == PASS
    assert verdict_of(judged(near, from_options({"max-replay-us": ["30.3"]})), "replay-us") == PASS
    assert len(clear.runs) == 1
    assert 2 < len(near.runs) <= 12


def test_a_time_is_measured_until_it_is_decided() -> None:
    for now, verdict in ((30.0, PASS), (31.5, FAIL), (36.0, FAIL)):
        measuring = FakeMeasuring(now, 0.004)
        judgment = judged(measuring, Budgets(), base_of(30, 10))
        assert verdict_of(judgment, "replay-us") == verdict
        assert verdict_of(judgment, "nodes") == PASS
        assert 3 <= len(measuring.runs) <= 12


def test_times_that_must_not_be_compared_are_not_measured_again() -> None:
    base = base_of(30, 10)
    values = msgspec.structs.replace(
        base.values, environment=msgspec.structs.replace(base.values.environment, torch="2.8.0")
    )
    measuring = FakeMeasuring(60, 0.004)
    judgment = judged(measuring, Budgets(), Base(base.path, values))
    assert verdict_of(judgment, "replay-us") == UNKNOWN
    assert len(measuring.runs) == 1


def test_it_stops_at_the_limit_and_says_so() -> None:
    measuring = FakeMeasuring(30, 0.01, max_runs=4)
    judgment = judged(measuring, from_options({"max-replay-us": ["30"]}))
    assert verdict_of(judgment, "replay-us") == UNKNOWN
    assert len(measuring.runs) == 4
    assert "undecided after 4 runs, and --max-runs allows no more" in judgment[0].notes[-1]
    measuring = FakeMeasuring(30, 0.01)
    measuring.max_seconds = 0
    judgment = judged(measuring, from_options({"max-replay-us": ["30"]}))
    assert len(measuring.runs) == 1
    assert "--max-seconds" in judgment[0].notes[-1]


def test_a_run_on_a_disturbed_gpu_is_made_again_and_left_out() -> None:
    shared = Clock((1980,), other_processes=1)
    measuring = FakeMeasuring(30, 0.002, clocks=[shared])
    judgment = judged(measuring, from_options({"max-replay-us": ["30.5"]}))
    assert verdict_of(judgment, "replay-us") == PASS
    assert len(measuring.runs) > 1
    assert "1 of 5 runs are left out of the times: 1 other process" in judgment[0].notes[-1]
    assert {sample.run for sample in judgment[1].values.samples} == set(range(4))
    measuring = FakeMeasuring(30, 0.002, clocks=[shared] * 99)
    judgment = judged(measuring, from_options({"max-replay-us": ["29"]}))
    assert verdict_of(judgment, "replay-us") == UNKNOWN
    assert len(measuring.runs) == 12


def test_a_baseline_has_as_many_runs_as_its_noise_takes() -> None:
    calm, noisy, hopeless = (
        FakeMeasuring(30, 0.004),
        FakeMeasuring(30, 0.012, max_runs=40),
        FakeMeasuring(30, 0.1),
    )
    for measuring in (calm, noisy, hopeless):
        values = judged(measuring, Budgets(), save=True)[1].values
        assert len({sample.run for sample in values.samples}) == len(measuring.runs)
    assert len(calm.runs) == 10
    assert 15 <= len(noisy.runs) <= 40
    assert len(hopeless.runs) == 12
    coarse = FakeMeasuring(30, 0.012, max_runs=40)
    judged(coarse, from_options({}, ["replay-us=3%"]), save=True)
    assert len(coarse.runs) == 10


def test_a_disturbed_run_is_left_out_of_a_baseline() -> None:
    shared = Clock((1980,), other_processes=1)
    measuring = FakeMeasuring(30, 0.004, clocks=[None, shared, shared], max_runs=20)
    values = judged(measuring, Budgets(), save=True)[1].values
    assert len(measuring.runs) == 12
    assert len({sample.run for sample in values.samples}) == 10


def test_it_looks_no_oftener_than_the_statistics_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    real = gate_targets.judge_target
    monkeypatch.setattr(
        gate_targets, "judge_target", lambda *a, **k: looks.append(1) or real(*a, **k)
    )
    judged(FakeMeasuring(30.0, 0.01, max_runs=100), from_options({"max-replay-us": ["30"]}))
    assert len(looks) <= LOOKS + 1


def test_what_needs_no_times_is_not_timed() -> None:
    measuring = FakeMeasuring(30, 0.005)
    judgment = judged(measuring, from_options({"max-nodes": ["30"]}))
    assert measuring.runs == ["capture"]
    assert verdict_of(judgment, "nodes") == PASS


def test_without_a_gpu_the_rest_is_still_judged() -> None:
    measuring = FakeMeasuring(30, 0.005, gpu=False)
    judgment = judged(measuring, from_options({"max-replay-us": ["30"], "max-nodes": ["17"]}))
    assert measuring.runs == ["capture"]
    assert verdict_of(judgment, "nodes") == PASS
    assert verdict_of(judgment, "replay-us") == UNKNOWN
    assert "needs a GPU" in judgment[0].verdicts[0].text


def test_a_fault_of_the_users_code_is_not_a_missing_gpu() -> None:
    class Faulty(FakeMeasuring):
        def bench(self, spec: str) -> Capture:
            raise user_code("model.py:build raised ValueError")

    with pytest.raises(Exception, match="ValueError"):
        judged(Faulty(30, 0.1), from_options({"max-replay-us": ["30"]}))


# --- the documentation


def test_the_documentation_shows_what_is_printed() -> None:
    command = "cgtool gate samples/captures/transformer.cgt --max-nodes 400 --max-pool-mib 64"
    assert shown_after("docs/cli.md", command) == printed_by(*command.split()[1:])


def test_the_table_in_the_documentation_is_one_that_pyproject_may_hold(tmp_path: Path) -> None:
    section = (ROOT / "docs" / "cli.md").read_text().partition("\n## `gate`\n")[2]
    (tmp_path / "pyproject.toml").write_text(section.split("```toml\n")[1].partition("```")[0])
    project = find_project(tmp_path)
    assert len(project_budgets(project, "a.py:b", simulated=False).limits) == 3
    budgets = project_budgets(project, "a.py:b", simulated=True)
    assert [limit.limit for limit in budgets.limits] == [150]


def test_every_field_of_the_json_is_documented(run) -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    section = text.partition("\n## `gate`\n")[2].partition("\n## ")[0]
    _, out, _ = run(MLP, "--max-nodes", 3, "--format", "json")

    def keys(value: object) -> set[str]:
        if isinstance(value, dict):
            own = set(value) - set(json.loads(out)["targets"][0]["figures"])
            return own.union(*map(keys, value.values()))
        return set().union(*map(keys, value)) if isinstance(value, list) else set()

    for name in keys(json.loads(out)):
        assert f"`{name}`" in section, name


def test_a_baseline_that_was_saved_can_be_read(run, tmp_path: Path) -> None:
    _, _, err = run(BENCH, "--save-baseline", "b.json")
    assert "saved b.json\n  its times: 1 of the 10 runs" in err
    values = read_baseline(tmp_path / "b.json")
    assert len(values.samples) == 6
    assert msgspec.structs.replace(values.entry, file=None) == values.entry


def test_nothing_is_written_over_a_target_or_another_result(run, tmp_path: Path) -> None:
    capture = tmp_path / "a.cgt"
    capture.write_bytes(MLP.read_bytes())
    (tmp_path / "link.json").symlink_to(capture)
    (tmp_path / "pyproject.toml").write_text(
        '[tool.cgtool.gate]\nbaseline = "named.json"\n'
        '[tool.cgtool.gate.simulated]\nbaseline = "simulated.json"\n'
    )
    for name in ("named.json", "simulated.json"):
        (tmp_path / name).touch()
    for arguments in (
        ["--save-baseline", "a.cgt"],
        ["--save-baseline", "new.cgt"],
        ["--save-baseline", "link.json"],
        ["--format", "json", "-o", capture],
        ["--format", "junit=link.json"],
        ["--format", "json=x", "--format", "junit=./x"],
        ["--format", "json=x", "--save-baseline", "x"],
        ["--format", "json=b.json", "--baseline", "b.json"],
        ["--format", "json=named.json"],
        ["--format", "json=simulated.json"],
        ["--format", "junit=no/gate.xml"],
        ["--format", "junit=."],
        ["--save-baseline", "no/b.json"],
    ):
        code, out, err = run("a.cgt", "--max-nodes", 400, *arguments)
        assert (code, out) == (2, "")
        assert "fix: " in err
    (tmp_path / "pyproject.toml").unlink()
    # A baseline may take the place of the one before it.
    for _ in range(2):
        assert run("a.cgt", "--save-baseline", "b.json")[0] == 0
    assert run("a.cgt", "--baseline", "b.json", "--save-baseline", "b.json")[0] == 0
    assert capture.read_bytes() == MLP.read_bytes()
    assert not (tmp_path / "x").exists()
    # A device holds any number of results.
    code, _, err = run(capture, "--max-nodes", 400, "--format", "json=/dev/null",
                       "--format", "junit=/dev/null")  # fmt: skip
    assert (code, err) == (0, "")


@pytest.mark.parametrize("width", ["0", "-5", "wide", ""])
def test_columns_that_are_not_a_width(run, monkeypatch, width: str) -> None:
    monkeypatch.setenv("COLUMNS", width)
    _, out, _ = run(MLP, "--max-nodes", 400)
    monkeypatch.delenv("COLUMNS")
    assert out == run(MLP, "--max-nodes", 400)[1]
    assert "nodes          25   at most 400   pass" in out


@pytest.mark.parametrize("kind", ["table", "json", "junit", "github", "benchmark-action"])
def test_standard_output_on_a_full_disk(kind: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "cgtool.cli.app", "gate", MLP, "--max-nodes", "3",
             "--format", kind],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "cgtool: cannot write to standard output: No space left on device\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_unicode(encoding: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cgtool.cli.app", "gate", MLP, "--max-findings", "0"],
        env={**os.environ, "PYTHONIOENCODING": encoding}, capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (5, b"")
    assert b"cannot tell: 1 of 1 figure" in done.stdout
