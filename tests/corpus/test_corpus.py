"""A part of the corpus; `python benchmarks/corpus.py` judges all of it.

Each commit checks another quarter of the programs that are not held out.
``CGTOOL_CORPUS_PART=2`` selects one, and ``CGTOOL_CORPUS_PART=all`` all four.
"""

from __future__ import annotations

import os
import subprocess

import pytest
import torch

from tests.corpus.catalog import FEATURES, HERE, Program, programs
from tests.corpus.judge import known_wrong, verdicts
from tests.corpus.truth import Twin, agrees_with, truths

PARTS = 4
GROUPS = 12
"""Tests that judge the programs of a part, for several workers to share."""


def _part() -> str:
    if given := os.environ.get("CGTOOL_CORPUS_PART"):
        return given
    command = ["git", "-C", str(HERE), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "0"
    return str(int(done.stdout.strip() or "0", 16) % PARTS)


def chosen(part: str) -> list[Program]:
    """The programs of a part, or of all."""
    seen = [program for program in programs() if not program.is_holdout]
    return seen if part == "all" else seen[int(part) :: PARTS]


PART = _part()


def test_programs_have_names_of_their_own():
    names = [program.name for program in programs()]
    assert len(names) == len(set(names))
    assert set(names) >= set(known_wrong())


def test_what_a_mark_says(tmp_path, monkeypatch):
    file = tmp_path / "scripts" / "streams" / "weather.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "x = 1  # <- sync-item if it-rains\ny = (\n    2  # <- sync-item (not shown)\n)\n"
    )
    for rains, lines in ((True, {1, 2, 3, 4}), (False, {2, 3, 4})):
        monkeypatch.setitem(FEATURES, "it-rains", lambda rains=rains: rains)
        program = Program(file)
        assert (program.family, program.is_script, program.is_faulty) == ("streams", True, True)
        assert program.marked_lines == lines
        assert [mark.is_shown for mark in program.all_marks] == [True, False]


def test_the_truth_compares_gradients_and_leaves_libraries_alone():
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.full((2,), 3.0)
    held = [weight, torch.classes, torch]
    twin = object.__new__(Twin)
    twin.call = lambda: held
    kept, gradient = twin.state()
    assert kept is weight and gradient is weight.grad


@pytest.mark.parametrize("group", range(GROUPS), ids=lambda group: f"{PART}-{group}")
def test_verdicts_are_right_but_for_those_known_to_be_wrong(group):
    group_of_part = chosen(PART)[group::GROUPS]
    known = known_wrong()
    wrong = {
        each.program.name: each for each in verdicts(group_of_part, jobs=1) if not each.is_right
    }
    text = "\n".join(each.text for name, each in wrong.items() if name not in known)
    assert wrong.keys() <= known.keys(), text


@pytest.mark.gpu
def test_streams_are_followed_on_a_gpu():
    streams = [each for each in programs("streams") if not each.is_holdout and not each.is_script]
    known = known_wrong()
    wrong = [each for each in verdicts(streams, "cuda") if not each.is_right]
    assert not [each.text for each in wrong if each.program.name not in known]


@pytest.mark.gpu
def test_a_part_is_marked_as_a_gpu_behaves():
    for program in chosen(PART)[::GROUPS]:
        result = truths([program])[program.name]
        assert agrees_with(program, result["result"]), (program.name, result)
