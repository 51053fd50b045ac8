"""Options of a capture that are given for a saved capture."""

from __future__ import annotations

from pathlib import Path

import pytest

MLP = Path(__file__).resolve().parent.parent.parent / "samples" / "captures" / "mlp.cgt"


@pytest.mark.parametrize(
    ("command", "flag"), [("pools", "--capture-pool"), ("dump", "--pool")], ids=lambda word: word
)
def test_the_option_is_named_as_the_command_spells_it(cgtool, command, flag):
    code, _, err = cgtool(command, MLP, flag, "separate")
    assert code == 2
    assert f"{flag} applies where an ENTRY is captured" in err


@pytest.mark.parametrize("command", ["capture", "check", "verify"])
def test_times_need_a_gpu_in_every_command_that_captures(cgtool, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sample = MLP.parent.parent / "mlp.py"
    code, _, err = cgtool(command, f"{sample}:build", "--times", "--device", "simulated")
    assert code == 3
    assert "--times needs a GPU" in err
