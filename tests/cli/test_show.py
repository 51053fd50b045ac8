"""``cgtool show``: the tables of a saved file again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cgtool
from tests.recorded import ROOT

SAMPLES = ROOT / "samples" / "captures"
PROFILE, BENCH = SAMPLES / "profile-train_step.cgt", SAMPLES / "mlp-bench.cgt"
RUN = ROOT / "tests" / "gold" / "html" / "engine.cgt"


def test_a_capture_is_shown_as_capture_showed_it(cgtool: Cgtool, tmp_path: Path) -> None:
    file, entry = tmp_path / "a.cgt", f"{ROOT / 'samples' / 'mlp.py'}:build"
    _, shown, _ = cgtool("capture", entry, "--device", "simulated", "-o", file)
    assert cgtool("show", file) == (0, shown, "")


@pytest.mark.parametrize(
    ("file", "command"), [(PROFILE, "profile"), (RUN, "run"), (RUN, "profile")]
)
def test_what_other_commands_show_of_a_file_is_shown(
    cgtool: Cgtool, file: Path, command: str
) -> None:
    _, whole, _ = cgtool("show", file)
    _, part, _ = cgtool(command, file)
    assert part in whole


@pytest.mark.parametrize(
    ("file", "reports"),
    [(BENCH, ["capture", "bench"]), (PROFILE, ["capture", "bench", "profile"]), (RUN, ["run"])],
)
def test_json_has_the_reports_of_the_file(cgtool: Cgtool, file: Path, reports: list[str]) -> None:
    code, shown, _ = cgtool("show", file, "--format", "json")
    assert (code, list(json.loads(shown))) == (0, ["schema", "schema_version", *reports])


def test_one_table_as_csv(cgtool: Cgtool) -> None:
    code, shown, _ = cgtool("show", BENCH, "--format", "csv", "--table", "times")
    assert code == 0
    assert [line.split(",")[0] for line in shown.splitlines()] == [
        "phase", "forward", "backward", "both"
    ]  # fmt: skip


@pytest.mark.parametrize("command", ["capture", "bench", "verify", "run"])
def test_commands_that_run_something_point_to_it(cgtool: Cgtool, command: str) -> None:
    code, _, error = cgtool(command, BENCH)
    assert code == 2
    assert f"fix: cgtool show {BENCH}" in error


def test_an_entry_is_captured_first(cgtool: Cgtool) -> None:
    code, out, err = cgtool("show", "samples/mlp.py:build")
    assert (code, out) == (2, "")
    assert "cgtool capture samples/mlp.py:build" in err
