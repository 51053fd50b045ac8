"""``cgtool bench`` on a GPU: several runs, baselines, and pairs of two entries."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cgtool.model.capture_file import read

pytestmark = pytest.mark.gpu

MODEL = """
import torch

class Slow(torch.nn.Module):
    def __init__(self, cycles):
        super().__init__()
        self.net = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
        self.cycles = cycles

    def forward(self, x):
        torch.cuda._sleep(self.cycles)
        return self.net(x).sum()

def make(cycles):
    def build(device):
        return Slow(cycles).to(device), (torch.randn(64, 256, device=device),)
    return build

build, again, slower = make({cycles}), make({cycles}), make({cycles} + 20_000)
"""


@pytest.fixture
def cgtool(tmp_path):
    def cgtool(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "cgtool.cli.app", "bench", *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        assert done.returncode in (0, 1, 2, 5), done.stderr
        return done

    write(tmp_path, 20_000)
    return cgtool


def write(folder, cycles):
    (folder / "model.py").write_text(MODEL.replace("{cycles}", str(cycles)))


def test_rounds_are_those_of_one_capture_in_each_run(cgtool, tmp_path):
    done = cgtool("model.py:build", "--runs", 2, "--rounds", 10, "--save", "two.cgt")
    assert done.returncode == 0, done.stderr
    samples = read(tmp_path / "two.cgt").bench.samples
    assert {(sample.name, sample.run, sample.captures) for sample in samples} == {
        (name, run, 1) for run in (0, 1) for name in ("eager", "replay")
    }
    assert {len(sample.device_ns) for sample in samples} == {10}
    for sample in samples:
        if sample.name == "replay":
            assert max(sample.device_ns) < 1.2 * min(sample.device_ns)


def test_a_baseline_shows_what_became_slower_and_what_did_not(cgtool, tmp_path):
    saved = cgtool("model.py:build", "--runs", 3, "--phase", "both", "--save", "base.cgt")
    assert saved.returncode == 0, saved.stderr
    arguments = ("model.py:build", "--baseline", "base.cgt", "--phase", "both")
    same = cgtool(*arguments, "--max-regression", "10%")
    assert same.returncode == 0, same.stdout
    assert "not slower" in same.stdout
    write(tmp_path, 80_000)
    slower = cgtool(*arguments)
    assert slower.returncode == 1, slower.stdout


def test_an_entry_against_itself_is_not_slower_and_a_longer_kernel_is(cgtool, tmp_path):
    same = cgtool("model.py:build", "--against", "model.py:again", "--save", "pairs.cgt")
    assert same.returncode == 0, same.stdout + same.stderr
    samples = read(tmp_path / "pairs.cgt").bench.samples
    assert {sample.name for sample in samples} == {"replay", "against"}
    assert len({sample.captures for sample in samples}) == 1
    assert samples[0].captures >= 16
    slower = cgtool("model.py:slower", "--against", "model.py:build")
    assert slower.returncode == 1, slower.stdout
    faster = cgtool("model.py:build", "--against", "model.py:slower")
    assert faster.returncode == 0, faster.stdout


def test_two_checkouts_with_modules_of_one_name_are_refused(cgtool, tmp_path):
    for name in ("before", "after"):
        folder = tmp_path / name
        folder.mkdir()
        head = MODEL.partition("build, again")[0]
        (folder / "model.py").write_text(f"import layers\n{head}build = make(layers.CYCLES)\n")
        (folder / "layers.py").write_text("CYCLES = 1000\n")
    done = cgtool("after/model.py:build", "--against", "before/model.py:build")
    assert done.returncode == 2
    assert "own module layers" in done.stderr
