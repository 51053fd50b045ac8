"""A sample of the corpus; `python benchmarks/corpus.py` runs all of it."""

from __future__ import annotations

import pytest
import torch

from tests.corpus.catalog import FEATURES, HERE, WRONG, entries, marks_of
from tests.corpus.judge import GOOD, judged
from tests.corpus.truth import Twin, agrees_with, truths

EVERY = 40
KNOWN = frozenset(WRONG.read_text().split())


def test_entries_have_names_of_their_own():
    keys = [entry.key for entry in entries()]
    assert len(keys) == len(set(keys))
    assert set(keys) >= KNOWN


def test_every_mark_belongs_to_an_entry():
    files = [*HERE.glob("entries/*.py"), *HERE.glob("scripts/*.py")]
    marks = sum(len(marks_of(file.read_text())) for file in files)
    assert sum(len(entry.guilty) for entry in entries()) == marks


def test_a_mark_may_depend_on_pytorch(monkeypatch):
    source = "x = 1  # guilty if it-rains: wet\ny = 2  # guilty: always\n"
    for rains, lines in ((True, [1, 2]), (False, [2])):
        monkeypatch.setitem(FEATURES, "it-rains", lambda rains=rains: rains)
        assert list(marks_of(source)) == lines


def test_the_truth_compares_gradients_and_leaves_libraries_alone():
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.full((2,), 3.0)
    held = [weight, torch.classes, torch]
    twin = object.__new__(Twin)
    twin.call = lambda: held
    kept, gradient = twin.state()
    assert kept is weight and gradient is weight.grad


def test_a_sample_gets_the_right_verdict():
    sample = [entry for entry in entries()[::EVERY] if entry.key not in KNOWN]
    wrong = [verdict.text for verdict in judged(sample) if verdict.outcome not in GOOD]
    if wrong:
        pytest.fail("\n".join(wrong))


@pytest.mark.gpu
def test_threads_and_streams_are_followed_on_a_gpu():
    chosen = entries(
        "generic_stream_class", "generic_stream_without_fork", "helper_thread_computes",
        "helper_thread_waits", "generic_streams_by_hand", "thread_polls_an_event",
        "operator_reads_its_bound",
    )  # fmt: skip
    wrong = [verdict.text for verdict in judged(chosen, "cuda") if verdict.outcome not in GOOD]
    assert not wrong, "\n".join(wrong)


@pytest.mark.gpu
def test_a_sample_is_marked_as_a_gpu_behaves():
    for entry in entries()[::EVERY]:
        result = truths([entry])[entry.key]
        assert agrees_with(entry, result["result"]), (entry.key, result)
