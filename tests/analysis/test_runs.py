"""Runs of one bench as one capture, and whether two benches can be compared at all."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from cgtool.analysis.gate.measured import measure
from cgtool.analysis.timing import runs
from cgtool.analysis.timing.bench import against_baseline, against_entry, bench_report, exit_code
from cgtool.analysis.timing.bench import verdicts as verdicts_of
from cgtool.analysis.timing.runs import by_capture, by_side, merge
from cgtool.model.capture import Capture, Caveat, Environment, Graph
from cgtool.model.measurements import Bench, Clock, Samples
from cgtool.model.validation import inconsistency
from tests import builders

QUIET = Clock((345, 1980, 1980), other_processes=0)


def run(replay_ns=50_000.0, *, clock=QUIET, captures=5, phase="forward", **fields) -> Capture:
    """One run: eager takes five times as long as a replay."""
    samples = tuple(
        Samples(name, phase, (each,) * 30, (1e3,) * 30, 100, captures=count)
        for name, each, count in (("eager", 5 * replay_ns, 1), ("replay", replay_ns, captures))
    )
    graph = Graph(phase, phase, capture_ns=900_000, instantiate_ns=100_000)
    bench = Bench(samples, clock, timer_grain_ns=500)
    return builders.capture([graph], bench=bench, **fields)


def test_runs_are_numbered_through_and_kept_apart():
    merged = merge([run(50_000.0), merge([run(51_000.0), run(52_000.0)])])
    assert [(sample.name, sample.run) for sample in merged.bench.samples] == [
        (name, number) for number in range(3) for name in ("eager", "replay")
    ]
    assert inconsistency(merged) is None
    samples = measure([merged]).values.samples
    assert {sample.run for sample in samples} == {0, 1, 2}


def test_a_caveat_of_every_run_is_reported_once():
    caveat = Caveat("time-limit", "stopped")
    merged = merge([run(caveats=(caveat,)), run(caveats=(caveat, Caveat("other", "x")))])
    assert [caveat.code for caveat in merged.caveats] == ["time-limit", "other"]


SLOW = Clock((345, 1755), (1,), (50,), (300.0,), ("power cap",), 2)


def test_the_clock_of_all_runs_is_idle_once():
    slower = replace(SLOW, sm_mhz=(345, 1500))
    clock = merge([run(clock=SLOW), run(clock=slower)]).bench.clock
    assert clock.sm_mhz == (345, 1755, 1500)
    assert (clock.throttle_reasons, clock.other_processes) == (("power cap",), 2)
    assert merge([run(), run(clock=None)]).bench.clock.sm_mhz == run().bench.clock.sm_mhz


def test_disturbed_runs_are_left_out_where_there_are_others():
    merged = merge([run(70_000.0, clock=SLOW), run(50_000.0), run(51_000.0)])
    assert {sample.run for sample in merged.bench.samples} == {0, 1}
    assert max(merged.bench.samples[1].device_ns) < 60_000
    assert not merged.bench.clock.throttle_reasons


def test_a_report_of_several_runs_is_of_all_their_rounds():
    report = bench_report(merge([run(50_000.0), run(52_000.0)]))
    assert (report.runs, report.rows[0].rounds) == (2, 60)
    assert report.rows[0].replay_ns == 51_000.0


def test_nothing_that_was_timed_cannot_be_merged():
    with pytest.raises(ValueError, match="no capture has times"):
        merge([replace(run(), bench=None)])


@pytest.mark.parametrize(("rounds", "count"), [(30, 5), (31, 5), (7, 3), (2, 5)])
def test_rounds_fall_to_their_captures(rounds, count):
    samples = Samples("replay", "forward", tuple(map(float, range(1, rounds + 1))), captures=count)
    parts = by_capture(samples)
    assert len(parts) == count
    assert tuple(each for part in parts for each in part) == samples.device_ns
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_sides_of_runs_are_in_one_row():
    sides = by_side(merge([run(1.0), run(2.0)]).bench.samples)["forward"]
    assert sides["replay"].device_ns == (1.0,) * 30 + (2.0,) * 30
    assert sides["replay"].captures == 10


# --- comparable


HERE = builders.environment()


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("device", "NVIDIA A100", "different GPU: NVIDIA A100 in the baseline, NVIDIA H200 here"),
        ("driver", "570.1", "different driver"),
        ("torch", "2.8.0", "different PyTorch"),
        ("cuda_runtime", "12.8", "different CUDA"),
        ("allocator_config", "expandable_segments:True", "different allocator configuration"),
    ],
)
def test_what_is_not_the_same_is_named_with_both_sides(field, value, word):
    other = replace(HERE, **{field: value})
    (reason,) = runs.why_incomparable(other, QUIET, HERE, QUIET).permanent
    assert word in reason


def test_unknown_values_are_not_a_reason():
    for host in (False, True):
        assert (
            runs.why_incomparable(Environment("NVIDIA H200"), None, HERE, QUIET, host=host).all
            == ()
        )
        assert runs.why_incomparable(HERE, QUIET, HERE, None, host=host).all == ()


@pytest.mark.parametrize(
    ("field", "values", "word"),
    [
        ("cpu", ("AMD EPYC 9654", "Intel Xeon 8480C"), "different processor: AMD EPYC 9654 in the"),
        ("cpus", (64, 16), "different number of processors: 64 in the baseline, 16 here"),
    ],
)
def test_another_host_is_a_reason_for_times_that_it_has_a_part_in(field, values, word):
    there, here = (replace(HERE, **{field: value}) for value in values)
    (reason,) = runs.why_incomparable(there, QUIET, here, QUIET, host=True).permanent
    assert word in reason
    assert runs.why_incomparable(there, QUIET, here, QUIET).all == ()
    assert runs.why_incomparable(there, QUIET, there, QUIET, host=True).all == ()


@pytest.mark.parametrize(("mhz", "apart"), [(1980, False), (1930, False), (1755, True)])
def test_typical_clocks_further_apart_than_3_percent_are_a_reason(mhz, apart):
    # One odd sample is not typical, and the first is of an idle GPU.
    other = Clock((345, mhz, mhz, 1200, mhz))
    reasons = runs.why_incomparable(HERE, QUIET, HERE, other).permanent
    assert bool(reasons) == apart
    if apart:
        assert reasons[0] == "different SM clock: 1980 MHz in the baseline, 1755 MHz here"


def test_a_throttled_or_shared_gpu_is_reported_with_the_side():
    hot = Clock((1980,), throttle_reasons=("hardware thermal slowdown",), other_processes=2)
    here = runs.why_incomparable(HERE, QUIET, HERE, hot)
    assert here.all == (
        "the GPU was throttled here: hardware thermal slowdown",
        "2 other processes used the GPU here",
    )
    before = runs.why_incomparable(HERE, hot, HERE, QUIET)
    assert len(before.all) == 2
    assert all("while the baseline was recorded" in reason for reason in before.all)
    assert (here.pass_over, before.pass_over) == (True, False)


def test_what_disturbs_a_gpu_passes_and_its_clock_with_it():
    slowed = Clock((345, 1200, 1200), throttle_reasons=("hardware slowdown",))
    reasons = runs.why_incomparable(HERE, QUIET, HERE, slowed)
    assert (reasons.permanent, len(reasons.temporary)) == ((), 2)
    assert reasons.pass_over
    other = runs.why_incomparable(replace(HERE, driver="570.1"), QUIET, HERE, slowed)
    assert not other.pass_over
    assert not runs.why_incomparable(HERE, QUIET, HERE, Clock((345, 1200, 1200))).pass_over


def test_a_power_limit_on_both_sides_is_not_a_reason():
    capped = Clock((345, 1980, 1980), throttle_reasons=("power cap",))
    assert runs.why_incomparable(HERE, capped, HERE, capped).all == ()
    assert runs.why_incomparable(HERE, QUIET, HERE, capped).all
    hot = Clock((345, 1980), throttle_reasons=("hardware slowdown",))
    assert runs.why_incomparable(HERE, hot, HERE, hot).all


# --- verdicts


def values(*times, **fields):
    return measure([merge([run(time, **fields) for time in times])]).values


STEADY = [50_000.0 + 50 * step for step in (-2, -1, 0, 1, 2, -1, 1, 0, 2, -2)]


def verdicts(times, **fields):
    return verdicts_of(against_baseline(values(*STEADY), values(*times, **fields), 0.01, 4))


def test_each_of_the_three_answers_has_its_exit_code():
    same, slower = verdicts(STEADY[:5]), verdicts([1.03 * time for time in STEADY[:6]])
    unclear = verdicts([1.012 * time for time in STEADY[:3]])
    assert [verdict.verdict for verdict in (*same, *slower, *unclear)] == [
        "not-slower", "slower", "cannot-tell",
    ]  # fmt: skip
    assert [exit_code(result) for result in (same, slower, unclear)] == [0, 1, 5]
    assert exit_code((*unclear, *slower)) == 1
    assert slower[0].head_ns / slower[0].base_ns == pytest.approx(1.03, abs=2e-3)


def test_times_that_must_not_be_compared_are_not():
    (verdict,) = verdicts([1.5 * time for time in STEADY[:3]], clock=Clock((345, 1200, 1200)))
    assert (verdict.answer, verdict.verdict) == (None, "cannot-tell")
    assert "different SM clock" in verdict.reasons[0]
    assert exit_code((verdict,)) == 5


def test_a_phase_that_one_side_has_not_timed_is_not_judged():
    now = values(*STEADY[:3], phase="step")
    assert against_baseline(values(*STEADY), now, 0.01, 4) == {}


def paired(factor, *, clock=QUIET):
    where = [0.002 * (index % 5) for index in range(16)]
    samples = tuple(
        Samples(
            name,
            "both",
            tuple(
                50_000.0 * (1 + place) * scale * (1 + 1e-5 * (round_ + place))
                for place in where
                for round_ in range(3)
            ),
            captures=16,
        )
        for name, scale in (("replay", factor), ("against", 1.0))
    )
    return builders.capture([], bench=Bench(samples, clock))


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "not-slower"), (1.005, "slower")])
def test_pairs_of_captures_are_judged_pair_by_pair(factor, verdict):
    """Places differ by 0.8%, and by the same for both sides."""
    (comparison,) = against_entry(paired(factor), 0.002)
    assert (comparison.phase, comparison.verdict, comparison.answer.base) == ("both", verdict, 16)
    assert comparison.answer.ratio == pytest.approx(factor, abs=1e-4)


def test_pairs_on_a_gpu_that_was_shared_are_not_judged():
    (verdict,) = against_entry(paired(1.1, clock=Clock((1980,), other_processes=1)), 0.002)
    assert (verdict.answer, verdict.reasons) == (
        None,
        ("1 other process used the GPU meanwhile",),
    )


def test_times_under_another_profiler_are_not_compared():
    watched = Clock((1980,), profiled=True)
    (reason,) = runs.why_incomparable(HERE, QUIET, HERE, watched).temporary
    assert "profiler" in reason
    (reason,) = runs.why_incomparable(HERE, watched, HERE, QUIET).permanent
    assert "profiler" in reason
