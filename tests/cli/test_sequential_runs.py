"""The loop of bench and gate: how many runs there are, when they are judged, and what ends it."""

from __future__ import annotations

import pytest

from cgtool.analysis.timing.regression import LOOKS, schedule
from cgtool.cli import sequential_runs
from cgtool.cli.sequential_runs import Look, Runs
from tests.builders import small


class Asked:
    """Judges nothing: notes how often it was asked, with how many runs."""

    def __init__(self, *, told_at=10**6, compared=True, max_seconds=1e6, had=1):
        self.told_at, self.compared = told_at, compared
        self.runs = Runs(small, max_seconds)
        self.runs.up_to(had)
        self.seen: list[tuple[int, int]] = []

    def look(self, looks):
        made = len(self.runs.captures)
        self.seen.append((made, looks))
        return Look(made, made < self.told_at, self.compared)

    def until_decided(self, **more):
        return sequential_runs.until_decided(self.runs, self.look, **more)


@pytest.mark.parametrize("most", [3, 4, 6, 12, 40])
def test_what_is_never_told_is_judged_at_the_schedule(most):
    asked = Asked()
    made, note = asked.until_decided(most=most)
    _, *looked = asked.seen
    looks = schedule(3, most)
    assert looked == [(count, len(looks)) for count in looks]
    assert len(looks) <= LOOKS
    assert (made, note) == (most, f"undecided after {most} runs, and --max-runs allows no more")


def test_it_ends_when_it_is_told():
    asked = Asked(told_at=5)
    assert asked.until_decided(most=12) == (5, None)


def test_one_run_never_tells_a_time_from_a_baseline():
    """Even where it seems to: a first look was not due."""
    asked = Asked(told_at=1)
    assert asked.until_decided(most=12) == (3, None)
    assert Asked(told_at=1, compared=False).until_decided(most=12) == (1, None)


def test_without_a_baseline_the_first_look_is_at_the_first_run():
    asked = Asked(compared=False, told_at=2)
    assert asked.until_decided(most=12) == (2, None)
    assert {looks for _, looks in asked.seen} == {len(schedule(1, 12))}


@pytest.mark.parametrize(
    ("had", "first", "most", "made"),
    [(1, 7, 12, 12), (1, 20, 12, 20), (10, None, 12, 12), (10, None, 4, 10), (1, None, 2, 2)],
)
def test_the_first_look_is_where_it_is_asked_for(had, first, most, made):
    asked = Asked(had=had)
    assert asked.until_decided(first=first, most=most)[0] == made
    assert asked.seen[1][0] == max(had, first or min(3, most))


def test_time_that_other_work_takes_is_not_that_of_runs(monkeypatch):
    """Between two runs a gate checks and verifies."""
    now = [0.0]
    monkeypatch.setattr(sequential_runs.time, "monotonic", lambda: now[0])

    def run():
        now[0] += 10
        return small()

    asked = Asked(max_seconds=35)
    asked.runs.run = run
    now[0] += 1000
    made, note = asked.until_decided(most=12)
    assert made == 5
    assert note == "35 s were over after 5 runs: --max-seconds allows more"
