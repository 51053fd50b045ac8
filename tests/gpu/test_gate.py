"""``cgtool gate`` of an entry that a GPU measures."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from cgtool.cli.app import main
from cgtool.model.baseline import read

pytestmark = pytest.mark.gpu

ENTRY = "samples/mlp.py:build"
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    monkeypatch.chdir(ROOT)

    def run(*arguments: object) -> tuple[int, dict[str, dict]]:
        words = ["cgtool", "gate", ENTRY, *map(str, arguments), "--format", "json"]
        monkeypatch.setattr(sys, "argv", words)
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        (target,) = json.loads(capfd.readouterr().out)["targets"]
        assert not target["simulated"]
        return code, {verdict["metric"]: verdict for verdict in target["verdicts"]}

    return run


def test_budgets_of_every_source(run) -> None:
    code, verdicts = run(
        "--max-kernels", 60, "--max-findings", 0, "--max-mismatches", 0, "--max-capture-ms", 5000,
        "--max-replay-us", 100_000, "--min-speedup", 0.01,
    )  # fmt: skip
    assert code == 0, verdicts
    assert verdicts["kernels"]["measured"] > 10
    assert 0 < verdicts["replay-us"]["low"] < verdicts["replay-us"]["high"]


def test_the_same_code_against_its_own_baseline(run, tmp_path: Path) -> None:
    """Counts are the same to the last one; whatever the times say, they are not slower."""
    saved = tmp_path / "base.json"
    assert run("--save-baseline", saved, "--max-runs", 3)[0] == 0
    assert {sample.run for sample in read(saved).samples} == {0, 1, 2}
    code, verdicts = run("--baseline", saved, "--max-runs", 3, "--max-regression", "5%")
    assert code in (0, 5), verdicts
    compared = [verdict for verdict in verdicts.values() if verdict["baseline"] is not None]
    assert {verdict["text"] for verdict in compared} > {"the same"}
    assert verdicts["replay-us"]["verdict"] in ("pass", "cannot-tell")
