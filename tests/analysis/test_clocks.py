"""Clocks of several runs as one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cgtool.analysis.timing.runs import merge_clocks, typical_clock
from cgtool.model.measurements import Clock

THROTTLED = Clock(
    (345, 1980, 1980), (800, 3201), (30, 45), (90.0, 600.5), ("power cap",), None, True
)
OTHER = Clock((600, 1755), (800, 3201), (35, 50), (120.0, 550.0), ("heat", "power cap"), 2)
samples = st.lists(st.integers(1, 3000), max_size=4).map(tuple)
clocks = st.builds(Clock, samples, samples, samples, samples)


def test_samples_are_joined_and_the_gpu_is_idle_once():
    assert merge_clocks([THROTTLED, OTHER]) == Clock(
        (345, 1980, 1980, 1755),
        (800, 3201, 3201),
        (30, 45, 50),
        (90.0, 600.5, 550.0),
        ("heat", "power cap"),
        2,
        True,
    )
    assert merge_clocks([]) is None
    assert merge_clocks([THROTTLED]) == THROTTLED


def test_one_sample_of_each_kind():
    both = merge_clocks([THROTTLED, OTHER])
    assert typical_clock(both) == Clock(
        (1980,), (3201,), (50,), (600.5,), ("heat", "power cap"), 2, True
    )
    assert typical_clock(Clock((345,))) == Clock((345,))


@given(st.lists(clocks, min_size=1))
def test_a_run_with_a_single_sample_is_not_lost(samples):
    assert bool(merge_clocks(samples).sm_mhz) == any(clock.sm_mhz for clock in samples)
    assert typical_clock(typical_clock(merge_clocks(samples))) == typical_clock(
        merge_clocks(samples)
    )
