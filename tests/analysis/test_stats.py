"""Statistics of noisy timings, and what bench makes of them."""

from __future__ import annotations

import math
import random
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgtool.analysis.timing import stats
from cgtool.analysis.timing.bench import bench_report
from cgtool.analysis.timing.runs import merge
from cgtool.model.capture import Capture, Entry, Environment, Graph
from cgtool.model.measurements import Bench, Clock, Samples


def test_the_interval_is_the_same_every_time():
    draw = random.Random(1)
    a = [draw.gauss(2, 0.1) for _ in range(30)]
    b = [draw.gauss(1, 0.1) for _ in range(30)]
    assert stats.ratio_interval(a, b) == stats.ratio_interval(a, b)
    low, high = stats.ratio_interval(a, b)
    assert 1.7 < low < 2 < high < 2.3


def test_a_against_a_covers_one_about_as_often_as_it_says(monkeypatch):
    monkeypatch.setattr(stats, "RESAMPLES", 400)
    draw = random.Random(7)
    covered = 0
    for trial in range(200):
        a = [draw.gauss(1, 0.05) for _ in range(25)]
        b = [draw.gauss(1, 0.05) for _ in range(25)]
        low, high = stats.ratio_interval(a, b, seed=trial)
        covered += low <= 1 <= high
    assert 0.90 <= covered / 200 <= 1.0


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=20))
def test_a_sample_against_itself_is_exactly_one(values):
    # However many samples are drawn from it.
    with mock.patch.object(stats, "RESAMPLES", 200):
        assert stats.ratio_interval(values, values) == (1.0, 1.0)


def test_of_an_even_count_neither_side_of_the_middle_is_favored():
    values = [1.0, 6.0, 2.0, 5.0, 3.0, 4.0]
    low, high = stats.ratio_interval(values, [1.0] * 6)
    mirrored = stats.ratio_interval([7 - value for value in values], [1.0] * 6)
    assert (low, high) == (7 - mirrored[1], 7 - mirrored[0])


def test_rounds_that_are_slow_one_after_the_other_say_less_than_scattered_ones():
    """Eager of one model on a shared host: 13.7 to 18.1 ms, for seconds at a time."""
    slow_for_a_while = [15.9 + 2.2 * math.sin(number / 4) for number in range(30)]
    scattered = random.Random(2).sample(slow_for_a_while, 30)
    replay = [2.65] * 30
    (low, high), (near, far) = (
        stats.ratio_interval(eager, replay) for eager in (slow_for_a_while, scattered)
    )
    assert low < near < far < high
    assert high - low > 2.5 * (far - near)
    assert low < 14.5 / 2.65
    assert high > 17.5 / 2.65


def test_the_interval_holds_what_lasts_for_many_rounds(monkeypatch):
    monkeypatch.setattr(stats, "RESAMPLES", 200)
    draw, held, series = random.Random(3), 0, 150
    for number in range(series):
        slow, eager = draw.gauss(0, 1), []
        for _ in range(30):
            eager.append(math.exp(0.1 * slow))
            slow = 0.8 * slow + 0.6 * draw.gauss(0, 1)
        low, high = stats.ratio_interval(eager, [1.0] * 30, seed=number)
        held += low <= 1 <= high
    assert held >= 0.87 * series


def test_no_rounds_is_an_error():
    with pytest.raises(ValueError, match="no rounds"):
        stats.ratio_interval([], [])


def test_spread_and_drift():
    assert stats.spread([1.0, 1.0, 1.0, 1.0]) == 0
    assert stats.spread([1.0]) is None
    assert stats.drift([100.0] * 6 + [110.0] * 3) == pytest.approx(0.1)


LOW, HIGH = 1_412_000.0, 1_541_000.0


@pytest.mark.parametrize("order", [[0] * 12 + [1] * 18, [0, 0, 1, 1, 1] * 6, [1] * 25 + [0] * 5])
def test_two_levels_are_found_in_any_order(order):
    draw = random.Random(0)
    rounds = [(LOW, HIGH)[each] * draw.gauss(1, 0.002) for each in order]
    levels = stats.two_levels(rounds)
    assert levels.low == pytest.approx(LOW, rel=0.002)
    assert levels.high == pytest.approx(HIGH, rel=0.002)
    assert list(levels.at_high) == [bool(each) for each in order]


def test_a_few_rounds_between_two_levels_and_an_outlier_hide_neither():
    rounds = [LOW + number for number in range(14)] + [HIGH + number for number in range(14)]
    assert stats.two_levels([*rounds, (LOW + HIGH) / 2, 1.05 * HIGH])


@pytest.mark.parametrize(
    "rounds",
    [
        [LOW] * 30,
        [LOW] * 26 + [HIGH] * 4,  # may be outliers
        [LOW, HIGH] * 4,  # too few
        [LOW] * 15 + [LOW * 1.004] * 15,  # not worth a word
        [LOW * (1 + number / 300) for number in range(30)],
        [LOW * (1 + 0.1 * 0.8**number) for number in range(30)],
        [],
    ],
)
def test_what_has_not_two_levels(rounds):
    assert stats.two_levels(rounds) is None


def test_rounds_at_two_levels_are_neither_drift_nor_spread():
    report = bench_report(capture_of([2 * LOW] * 30, [LOW] * 10 + [HIGH] * 20))
    (levels,) = report.levels
    assert (levels.side, levels.low_rounds, levels.high_rounds, levels.changes) == (
        "replay", 10, 20, 1,
    )  # fmt: skip
    (warning,) = [text for text in report.warnings if "clock is unknown" not in text]
    assert warning.startswith(
        "replay forward has two speeds: 1.41 ms in 10 rounds and 1.54 ms in 20 (+9.1%), with "
        "1 change between them"
    )


def test_runs_at_two_levels_are_no_series():
    """Each run has a speed of its own: where its memory is."""
    one = capture_of([2 * LOW] * 10, [LOW] * 10)
    other = capture_of([2 * LOW] * 10, [HIGH] * 10)
    assert not bench_report(merge([one, other])).levels


def capture_of(eager, replay, **bench):
    samples = (
        Samples("eager", "forward", tuple(eager), tuple(eager), 10),
        Samples("replay", "forward", tuple(replay), tuple(replay), 10),
    )
    graph = Graph("forward", "forward", capture_ns=900_000, instantiate_ns=100_000)
    return Capture(
        Entry("x", "callable"),
        Environment("gpu"),
        "",
        "",
        graphs=(graph,),
        bench=Bench(samples, timer_grain_ns=500, **bench),
    )


def test_rows_and_break_even():
    report = bench_report(capture_of([100_000.0] * 20, [50_000.0] * 20))
    row = report.rows[0]
    assert (row.speedup, row.speedup_low, row.speedup_high) == (2.0, 2.0, 2.0)
    assert row.break_even == 20


def test_a_replay_that_is_slower_never_pays():
    assert bench_report(capture_of([50_000.0] * 20, [60_000.0] * 20)).rows[0].break_even is None


def test_warnings_name_their_remedy():
    draw = random.Random(0)
    noisy = [draw.uniform(50_000, 150_000) for _ in range(5)]
    clock = Clock((1000, 1900, 1200), throttle_reasons=("power cap",))
    warnings = " ".join(bench_report(capture_of(noisy, [100.0] * 5, clock=clock)).warnings)
    for word in ("only 5 rounds", "varied by", "timer's resolution", "power cap", "SM clock"):
        assert word in warnings


@pytest.mark.parametrize(("pairs", "doubted"), [(600, True), (1, False)])
def test_many_pairs_of_events_are_limited_by_their_grain(pairs, doubted):
    """8 us between two events is near the timer's grain, however often it is repeated."""
    iterations = 1 if pairs > 1 else 600
    samples = tuple(
        Samples(
            name, "backward", (8_000.0,) * 20, (8_000.0,) * 20, iterations, pairs, behind="forward"
        )
        for name in ("eager", "replay")
    )
    capture = capture_of([1.0], [1.0])
    report = bench_report(
        msgspec.structs.replace(capture, bench=Bench(samples, timer_grain_ns=500))
    )
    assert any("8.0 us between events" in warning for warning in report.warnings) == doubted
    assert report.rows[0].behind == "forward"


def test_an_unknown_clock_is_reported():
    warnings = bench_report(capture_of([100_000.0] * 20, [50_000.0] * 20)).warnings
    assert any("nvidia-ml-py" in warning for warning in warnings)


@pytest.mark.parametrize("empty", ["eager", "replay"])
def test_a_side_without_times_has_no_row(empty):
    full = [100_000.0] * 20
    sides = {"eager": full, "replay": full, empty: []}
    assert bench_report(capture_of(sides["eager"], sides["replay"])).rows == ()


def test_a_capture_without_timings_is_an_error():
    with pytest.raises(ValueError, match="no times"):
        bench_report(Capture(Entry("x", "callable"), Environment("gpu"), "", ""))
