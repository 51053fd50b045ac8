"""``cgtool diff``: what it exits with, what it refuses, and that the same code is the same."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from functools import partial
from pathlib import Path

import pytest
from msgspec import structs

from cgtool.model.capture import Environment
from cgtool.model.capture_file import read, write
from tests.builders import capture, hostile, unusual
from tests.forked_workers import run_cgtool

ROOT = Path(__file__).resolve().parent.parent.parent
CAPTURES = ROOT / "samples" / "captures"
MLP, MLP_AGAIN, GAN = (CAPTURES / f"{name}.cgt" for name in ("mlp", "mlp-bench", "gan"))
SIMULATED = ROOT / "tests" / "gold" / "captures" / "mlp-separate-simulated.cgt"


@pytest.fixture
def run(cgtool):
    return partial(cgtool, "diff")


CAPTURE = ("capture", "--device", "simulated", "-q")


def captured(entry: str, path: Path) -> None:
    done = run_cgtool(*CAPTURE, entry, "-o", path, cwd=ROOT)
    assert done.returncode == 0, done.stderr


SAMPLES = ("mlp", "two_streams", "gan", "train_step")
CAPTURES_ELSEWHERE = f"""
from pathlib import Path
from tests.forked_workers import run_cgtool
for sample in {SAMPLES}:
    files = f"{{sample}}.py:build", "-o", f"{{sample}}.cgt"
    done = run_cgtool(*{CAPTURE}, *files, cwd=Path.cwd() / "elsewhere")
    assert done.returncode == 0, done.stderr
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """Captures of the samples in a folder of another name, under a comment, with other hashes of
    strings."""
    folder = tmp_path_factory.mktemp("samples") / "elsewhere"
    folder.mkdir()
    for sample in SAMPLES:
        source = (ROOT / "samples" / f"{sample}.py").read_text()
        (folder / f"{sample}.py").write_text(f"# A line more.\n{source}")
    subprocess.run(
        [sys.executable, "-c", CAPTURES_ELSEWHERE],
        cwd=folder.parent,
        env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)},
        check=True,
    )
    return folder


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_same_code_captured_in_two_processes_from_two_folders(run, elsewhere, tmp_path, sample):
    files = [tmp_path / "a.cgt", elsewhere / f"{sample}.cgt"]
    captured(f"samples/{sample}.py:build", files[0])
    code, out, err = run(*files)
    assert (code, err) == (0, ""), out
    assert out.startswith("No difference: ")


def test_docs_show_what_it_prints_of_an_edited_model(tmp_path):
    source = (ROOT / "samples" / "transformer.py").read_text()
    edits = {"nn.GELU()": "nn.ReLU()", "return x + self.mlp(": "return self.mlp("}
    edited = source
    for before, after in edits.items():
        assert before in edited
        edited = edited.replace(before, after)
    files = [tmp_path / name / "transformer.py" for name in ("one", "other")]
    for file, text in zip(files, (source, edited), strict=True):
        file.parent.mkdir()
        file.write_text(text)
    for file in files:
        captured(f"{file}:build", tmp_path / f"{file.parent.name}.cgt")
    for name, file in zip(("before", "after"), files, strict=True):
        recorded = read(tmp_path / f"{file.parent.name}.cgt")
        entry = structs.replace(recorded.entry, spec="samples/transformer.py:build")
        # Any torch of the range may test this.
        environment = structs.replace(recorded.environment, torch="2.13.0+cpu")
        write(
            tmp_path / f"{name}.cgt",
            structs.replace(recorded, entry=entry, environment=environment),
        )
    done = subprocess.run(
        [sys.executable, "-m", "cgtool.cli.app", "diff", "before.cgt", "after.cgt"],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
    page = (ROOT / "docs" / "cli.md").read_text()
    shown = page.partition("\n$ cgtool diff before.cgt after.cgt\n")[2].partition("\n```\n")[0]
    assert shown.splitlines() == [line.rstrip() for line in done.stdout.splitlines()]


PAIRS = """
import torch

def entry(function):
    def build(device):
        torch.manual_seed(0)
        x, y = torch.randn(4, 4, device=device), torch.randn(4, 4, device=device)
        return lambda x, y: function(torch.relu(x), y), (x, y)
    return build

"""
DIFFERENT = {
    "x * 2": ("x * 3", "other"),
    "x.sum(0)": ("x.sum(1)", "dim"),
    "x - y": ("y - x", "self", "other"),
    "x.exp() - y.exp()": ("y.exp() - x.exp()", "self"),
    "x @ y": ("x @ y.t()", "mat2"),
    "torch.dropout(x, 0.1, True)": ("torch.dropout(x, 0.9, True)", "p"),
    "x.clamp(0, 1)": ("x.clamp(0, 2)", "max"),
    "x[0] + y[0]": ("x[3] + y[0]", "self"),
    "x.to(torch.float16)": ("x.to(torch.bfloat16)", "shape", "dtype"),
    "torch.cat([x, y])": ("torch.cat([y, x])", "tensors"),
    # PyTorch passes `dim` on only in the second.
    "x.topk(2).values": ("x.topk(2, largest=False).values", "largest"),
}


@pytest.mark.parametrize("before", DIFFERENT)
def test_what_an_op_is_given_is_part_of_what_a_replay_does(run, tmp_path, before):
    after, *names = DIFFERENT[before]
    file = tmp_path / "two.py"
    file.write_text(f"{PAIRS}a = entry(lambda x, y: {before})\nb = entry(lambda x, y: {after})\n")
    code, out, _ = run(f"{file}:a", f"{file}:b", "--format", "json")
    attributes = {
        attribute["name"] for row in json.loads(out)["changes"] for attribute in row["attributes"]
    }
    assert code == 1
    assert attributes == set(names)


@pytest.mark.parametrize(
    ("before", "after", "summary", "change"),
    [
        ("gelu(x)", "relu(x)", "gelu at two.py:12 became relu in 3 places", "[1,4] and 2 others"),
        (
            "leaky_relu(x, 0.1)",
            "leaky_relu(x, 0.2)",
            "3 calls of leaky_relu at two.py:12 changed argument `negative_slope` from 0.1 to 0.2",
            "negative_slope 0.1 → 0.2 ",
        ),
    ],
)
def test_a_row_of_nodes_of_several_shapes(run, tmp_path, before, after, summary, change):
    each = "def {0}(x, y):\n    return [torch.nn.functional.{1} for x in (x[:1], x[:2], x[:3])]\n"
    for name, call in (("a", before), ("b", after)):
        text = f"{PAIRS}{each.format('f', call)}{name} = entry(f)\n"
        (tmp_path / name).mkdir()
        (tmp_path / name / "two.py").write_text(text)
    _, out, _ = run(*(f"{tmp_path / name / 'two.py'}:{name}" for name in "ab"))
    assert summary in " ".join(out.split())
    assert change in out


def test_many_ops_with_another_argument_say_which(run, tmp_path):
    file = tmp_path / "two.py"
    lines = "".join(f"x = x.{op}(y, alpha=n)\n        " for op in ("add", "sub") * 2)
    function = f"def scaled(n):\n    def f(x, y):\n        {lines}return x\n    return entry(f)\n"
    file.write_text(f"{PAIRS}{function}a, b = scaled(2), scaled(3)\n")
    _, out, _ = run(f"{file}:a", f"{file}:b")
    assert "4 calls of 2 ops changed argument `alpha` from 2 to 3" in " ".join(out.split())


def test_an_entry_is_captured_where_the_other_was(run, tmp_path):
    path = tmp_path / "a.cgt"
    entry = f"{ROOT / 'samples' / 'mlp.py'}:build"
    captured(entry, path)
    code, out, _ = run(entry, path, "-q")
    assert (code, out) == (0, "")


def test_real_captures_of_the_same_code(run):
    code, out, err = run(MLP, MLP_AGAIN)
    assert (code, err) == (0, "")
    assert "No difference: 25 nodes in 2 graphs are the same" in out


def test_a_difference(run):
    code, out, err = run(MLP, GAN)
    assert (code, err) == (1, "")
    assert out.startswith("B has 2 more nodes: ")
    assert run(MLP, GAN, "-q") == (1, "", "")


def test_json(run, tmp_path):
    target = tmp_path / "diff.json"
    assert run(MLP, GAN, "--format", "json", "-o", target)[:2] == (1, "")
    report = json.loads(target.read_text())
    assert report["schema"] == "cgtool-diff"
    assert report["different"] is True
    assert report["summary"].startswith("B has 2 more nodes: ")
    changes = [row for row in report["changes"] if row["change"] == "removed"]
    assert sum(row["nodes"] for row in changes) == sum(len(row["a"]) for row in changes) == 25
    code, out, _ = run(MLP, MLP_AGAIN, "--format", "json", "-q")
    assert code == 0
    assert json.loads(out)["changes"] == []


def test_rows(run):
    few = run(MLP, GAN, "--rows", "2")[1]
    every = run(MLP, GAN, "--rows", "0")[1]
    assert "more rows with " in few
    assert "more rows" not in every
    assert len(few.splitlines()) < len(run(MLP, GAN)[1].splitlines()) < len(every.splitlines())


def test_a_table_in_a_file_even_when_quiet(run, tmp_path):
    target = tmp_path / "diff.txt"
    assert run(MLP, GAN, "-q", "-o", target)[:2] == (1, "")
    assert target.read_text().startswith("B has 2 more nodes: ")


def test_names_that_try_to_break_things(run, tmp_path):
    first, same, other = (tmp_path / f"{name}.cgt" for name in ("one", "same", "other"))
    write(first, hostile())
    shutil.copy(first, same)
    write(other, unusual())
    assert run(first, same)[0] == 0
    for pair in ((first, other), (other, first)):
        for arguments in ((), ("--format", "json")):
            code, out, err = run(*pair, *arguments)
            assert (code, err) == (1, "")
            assert "\x1b" not in out
            assert "\x00" not in out


# What it refuses


def test_files_that_are_not_captures(run, tmp_path):
    folder = tmp_path / "folder.cgt"
    folder.mkdir()
    text = tmp_path / "text.cgt"
    text.write_text("not a zip file")
    cut = tmp_path / "cut.cgt"
    cut.write_bytes(MLP.read_bytes()[:5000])
    empty = tmp_path / "empty.cgt"
    empty.touch()
    archive = tmp_path / "zip.cgt"
    with zipfile.ZipFile(archive, "w") as archive_file:
        archive_file.writestr("readme.txt", "hello")
    for bad in (tmp_path / "missing.cgt", folder, text, cut, empty, archive):
        for pair in ((MLP, bad), (bad, MLP)):
            code, out, err = run(*pair)
            assert (code, out) == (2, ""), bad
            assert err.startswith(f"cgtool: {bad}"), err
            assert "Traceback" not in err


def test_a_capture_of_a_newer_cgtool(run, tmp_path):
    path = tmp_path / "newer.cgt"
    write(path, capture([]))
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    parts["manifest.json"] = parts["manifest.json"].replace(
        b'"schema_version":1', b'"schema_version":99'
    )
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    code, out, err = run(MLP, path)
    assert (code, out) == (2, "")
    assert "newer cgtool (schema 99" in err
    assert "upgrade cgtool" in err


@pytest.mark.parametrize(
    ("bad", "why"),
    [(str(ROOT), "is a folder"), ("samples", "is a folder"), ("nonsense", "no such file")],
)
def test_neither_a_file_nor_an_entry(run, bad, why):
    code, out, err = run(MLP, bad)
    assert (code, out) == (2, "")
    assert f"{bad}{'' if why.startswith('is') else ':'} {why}" in err


def test_a_file_is_looked_at_before_an_entry_is_captured(run, tmp_path):
    entry = tmp_path / "model.py"
    entry.write_text("raise SystemExit('this must not run')")
    code, _, err = run(f"{entry}:build", tmp_path / "missing.cgt")
    assert code == 2
    assert "missing.cgt: no such file" in err


def test_a_gpu_against_the_simulated_device(run):
    for pair in ((MLP, SIMULATED), (SIMULATED, MLP)):
        code, out, err = run(*pair)
        assert (code, out) == (2, "")
        assert f"{SIMULATED} was captured on the simulated device, {MLP} on NVIDIA H200" in err
        assert "  fix: capture both on the same" in err


def test_one_capture_is_not_enough(run):
    code, _, err = run(MLP)
    assert code == 2
    assert "Missing argument 'B'" in err


def test_what_differs_is_written_over_neither_capture(run, tmp_path):
    a, b = tmp_path / "a.cgt", tmp_path / "b.cgt"
    shutil.copy(MLP, a)
    shutil.copy(GAN, b)
    for target in (a, b):
        code, out, err = run(a, b, "-o", target)
        assert (code, out) == (2, "")
        assert "would overwrite" in err
    assert read(a) == read(MLP)
    assert read(b) == read(GAN)


def test_a_run_that_recorded_nothing_against_the_simulated_device(run, tmp_path):
    nothing = tmp_path / "nothing.cgt"
    write(nothing, structs.replace(capture([]), environment=Environment("")))
    code, _, err = run(nothing, SIMULATED)
    assert (code, f"{nothing} has no graphs: nothing was recorded on a device" in err) == (2, True)
