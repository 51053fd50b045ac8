"""The loop of bench and gate: how many runs there are, when they are judged, and what ends it."""

from __future__ import annotations

import pytest

from cgtool.analysis.timing.regression import LOOKS, planned_looks
from cgtool.cli import workers
from cgtool.cli.workers import Look, Runs
from tests.builders import small


class RecordingJudge:
    """Judges nothing: records how many runs there were at each look, and how many looks are due."""

    def __init__(self, *, decided_at=10**6, compared=True, max_seconds=1e6, had=1):
        self.decided_at, self.compared = decided_at, compared
        self.runs = Runs(small, max_seconds)
        self.runs.up_to(had)
        self.looks: list[tuple[int, int]] = []

    def look(self, looks):
        run_count = len(self.runs.captures)
        self.looks.append((run_count, looks))
        return Look(run_count, run_count < self.decided_at, self.compared)

    def until_decided(self, **more):
        return workers.until_decided(self.runs, self.look, **more)


@pytest.mark.parametrize("most", [3, 4, 6, 12, 40])
def test_an_undecided_comparison_is_judged_at_each_scheduled_look(most):
    judge = RecordingJudge()
    run_count, note = judge.until_decided(most=most)
    _, *later = judge.looks
    looks = planned_looks(3, most)
    assert later == [(count, len(looks)) for count in looks]
    assert len(looks) <= LOOKS
    assert run_count == most
    assert note == f"undecided after {most} runs, and --max-runs allows no more"


def test_it_ends_when_a_look_decides():
    judge = RecordingJudge(decided_at=5)
    assert judge.until_decided(most=12) == (5, None)


def test_one_run_never_decides_against_a_baseline():
    """Even where it seems to: a first look was not due."""
    judge = RecordingJudge(decided_at=1)
    assert judge.until_decided(most=12) == (3, None)
    assert RecordingJudge(decided_at=1, compared=False).until_decided(most=12) == (1, None)


def test_without_a_baseline_the_first_look_is_at_the_first_run():
    judge = RecordingJudge(compared=False, decided_at=2)
    assert judge.until_decided(most=12) == (2, None)
    assert {looks for _, looks in judge.looks} == {len(planned_looks(1, 12))}


@pytest.mark.parametrize(
    ("had", "first", "most", "run_count"),
    [(1, 7, 12, 12), (1, 20, 12, 20), (10, None, 12, 12), (10, None, 4, 10), (1, None, 2, 2)],
)
def test_the_first_look_is_where_the_caller_wants_it(had, first, most, run_count):
    judge = RecordingJudge(had=had)
    assert judge.until_decided(first=first, most=most)[0] == run_count
    assert judge.looks[1][0] == max(had, first or min(3, most))


def test_time_that_other_work_takes_is_not_that_of_runs(monkeypatch):
    """Between two runs a gate checks and verifies."""
    now = [0.0]
    monkeypatch.setattr(workers.time, "monotonic", lambda: now[0])

    def run():
        now[0] += 10
        return small()

    judge = RecordingJudge(max_seconds=35)
    judge.runs.run = run
    now[0] += 1000
    run_count, note = judge.until_decided(most=12)
    assert run_count == 5
    assert note == "the limit of 35 s was reached after 5 runs: --max-seconds raises it"
