"""Whether a graph helps, and the findings of what costs beside it."""

from __future__ import annotations

import pytest
from msgspec import structs

from cgtool.analysis.graph.schedule import critical_path
from cgtool.analysis.timing import gain, gaps
from cgtool.analysis.units import time_text
from cgtool.model.capture import Edge, Graph, KernelLaunch, Node, Origin, Stream
from cgtool.model.measurements import Bench, GraphTimes, InputCopy, Profile, Samples
from tests.builders import capture, chain

US = 1000.0


def profiled(
    *,
    eager=300.0,
    replay=100.0,
    host=290.0,
    busy=90.0,
    wobble=0.0,
    capture_us=2000.0,
    inputs=(),
    times=None,
    launch=None,
    graphs=None,
):
    """A forward that was profiled; all in microseconds."""
    swing = [1 + wobble * (round % 5 - 2) for round in range(12)]
    samples = [
        Samples(
            "eager", "forward", tuple(eager * US * factor for factor in swing), (host * US,) * 12
        ),
        Samples(
            "replay", "forward", tuple(replay * US * factor for factor in reversed(swing)), (5e3,)
        ),
    ]
    node = Node(0, "kernel", 0, 0, 0, KernelLaunch(0, (1, 1, 1), (1, 1, 1)))
    node = structs.replace(node, start_ns=0, duration_ns=round(busy * US))
    forward = Graph(
        "forward",
        "forward",
        nodes=(node,),
        capture_ns=round(capture_us * US),
        launch_ns=(round(launch * US),) if launch else (),
    )
    times = times or GraphTimes(0, (replay * US + 1000,), (1000.0,))
    return capture(
        graphs or [forward],
        bench=Bench(tuple(samples)),
        profile=Profile("cupti", (times,), inputs=tuple(inputs)),
        origins=(Origin("aten::relu", "act", "ReLU"), Origin("aten::copy_", "", "Model")),
        streams=(Stream(1, "capture stream"), Stream(2, "side stream")),
    )


def judge(recorded):
    top = range(len(recorded.graphs))
    lines = [gaps.timeline_of(recorded, index) for index in top]
    return gain.judge(recorded, lines, [critical_path(recorded, index) for index in top])


def finding(recorded, code):
    (result,) = [each for each in judge(recorded).findings if each.code == code]
    return result


def codes(recorded):
    return {each.code for each in judge(recorded).findings}


def test_yes():
    judgment = judge(profiled())
    assert judgment.answer == "yes"
    assert judgment.sentence == (
        "A CUDA graph makes this 3.0x faster (95% CI 3.0x to 3.0x) and pays for its capture after "
        "10 replays."
    )
    assert judgment.why == (
        "Eager is launch-bound: the host takes 290 us to launch 90.0 us of GPU work."
    )
    assert judgment.at_most == pytest.approx(300 / 90)
    assert judgment.findings == ()


def test_hardly():
    judgment = judge(profiled(eager=105.0, replay=100.0))
    assert judgment.answer == "hardly"
    assert judgment.sentence.startswith("A CUDA graph makes this only 1.05x faster (95% CI 1.05x ")
    assert judgment.why == (
        "90.0 us of eager's 105 us is GPU work (86%), which a graph does not shorten: it can gain "
        "at most 1.17x."
    )


def test_no_because_the_gpu_is_busy_anyway():
    recorded = profiled(eager=1000.0, replay=1000.0, host=100.0, busy=990.0, wobble=0.001)
    judgment = judge(recorded)
    assert judgment.answer == "no"
    assert judgment.sentence.startswith(
        "A CUDA graph gains nothing here: 1.00x the speed of eager ("
    )
    assert judgment.why.startswith("990 us of eager's 1.00 ms is GPU work (99%)")
    assert judgment.why.endswith("at most 1.01x.")
    assert "gpu-bound-no-gain" in codes(recorded)


def test_no_because_it_is_slower():
    judgment = judge(profiled(eager=100.0, replay=125.0))
    assert (judgment.answer, judgment.break_even) == ("no", None)
    assert judgment.sentence == (
        "A CUDA graph makes this slower: 0.80x the speed of eager (95% CI 0.80x to 0.80x)."
    )


def test_cannot_tell():
    judgment = judge(profiled(eager=120.0, replay=100.0, wobble=0.3))
    assert judgment.answer == "cannot tell"
    assert judgment.sentence.startswith("Cannot tell whether a CUDA graph helps: ")
    assert judgment.warnings


def test_not_timed_against_eager():
    judgment = judge(structs.replace(profiled(), bench=None))
    assert (judgment.answer, judgment.speedup) == ("cannot tell", None)
    assert "not timed against eager" in judgment.sentence


def test_the_answer_is_for_the_whole_iteration():
    recorded = profiled()
    both = [structs.replace(each, phase="both") for each in recorded.bench.samples]
    recorded = structs.replace(recorded, bench=Bench((*recorded.bench.samples, *both)))
    assert judge(recorded).phase == "both"


def test_copies_of_inputs_count():
    # 26 us, of which the events take one.
    judgment = judge(profiled(inputs=[InputCopy("input x", 1 << 20, 26 * US)]))
    assert judgment.with_copies == pytest.approx(300 / 125)
    assert judgment.findings == ()


@pytest.mark.parametrize(("eager", "copy"), [(300.0, 120.0), (110.0, 15.0)])
def test_copies_that_cost_more_than_the_graph_or_than_it_saves(eager, copy):
    recorded = profiled(
        eager=eager, inputs=[InputCopy("input x", 4 << 20, (copy + 1) * US, 500 * US)]
    )
    result = finding(recorded, "input-copy-dominates")
    assert (
        f"copying the inputs takes {time_text(copy * US)} before each replay of 100 us"
        in result.reason
    )
    assert ("the replay saves 10.0 us" in result.reason) == (eager == 110.0)
    assert result.evidence == (
        f"input x: 4.0 MiB, {time_text(copy * US)} from the device, 500 us from pinned memory",
    )


@pytest.mark.parametrize(
    ("rows", "expected"), [(1500, True), (1024, True), (1000, False), (None, False)]
)
def test_padding(rows, expected):
    recorded = profiled(inputs=[InputCopy("input x", 4096, US, rows=2048, padding_rows=rows)])
    assert ("padding-waste" in codes(recorded)) == expected
    if expected:
        reason = finding(recorded, "padding-waste").reason
        assert f"{rows} of the 2048 rows of input x hold a single value" in reason


def test_the_first_replay():
    times = GraphTimes(0, (100 * US,), (), (), 900 * US, (110 * US,), 105 * US)
    result = finding(profiled(times=times), "first-replay-latency")
    assert "takes 900 us, later ones take 110 us" in result.reason
    quick = structs.replace(times, first_ns=150 * US)
    assert codes(profiled(times=quick)) == set()


def test_a_wait_behind_each_replay():
    times = GraphTimes(0, (100 * US,), (), (), 150 * US, (135 * US,), 100 * US)
    result = finding(profiled(times=times), "per-step-sync-around-replay")
    assert "takes 135 us per iteration instead of 100 us: 35% more" in result.reason
    # A graph that can be instantiated once only has no first replay of its own.
    once = structs.replace(times, first_ns=None)
    assert codes(profiled(times=once)) == {"per-step-sync-around-replay"}
    cheap = structs.replace(times, synced_ns=(110 * US,))
    assert codes(profiled(times=cheap)) == set()


@pytest.mark.parametrize(("count", "expected"), [(2, False), (4, True)])
def test_many_small_graphs(count, expected):
    recorded = profiled(busy=2.0, launch=6.0)
    graphs = tuple(
        structs.replace(recorded.graphs[0], name=f"forward {number}") for number in range(count)
    )
    times = tuple(GraphTimes(number, (3 * US,)) for number in range(count))
    profile = structs.replace(recorded.profile, graphs=times)
    recorded = structs.replace(recorded, graphs=graphs, profile=profile)
    assert ("too-many-small-graphs" in codes(recorded)) == expected
    if expected:
        reason = finding(recorded, "too-many-small-graphs").reason
        assert "4 graphs are shorter than their launch: the host takes 24.0 us" in reason
        assert "launch 12.0 us of GPU work" in reason


def test_a_capture_that_pays_late():
    recorded = profiled(eager=100.1, replay=100.0, capture_us=5000.0)
    assert "only after 50,000 replays" in finding(recorded, "capture-time-not-amortized").reason
    assert "capture-time-not-amortized" not in codes(profiled(eager=101.0, capture_us=5000.0))


@pytest.mark.parametrize(("copying_ns", "expected"), [(45_000, True), (30_000, False)])
def test_time_in_copies_and_casts(copying_ns, expected):
    launch = KernelLaunch(0, (1, 1, 1), (1, 1, 1))
    nodes = (
        Node(0, "kernel", 0, 0, 0, launch, start_ns=0, duration_ns=100_000 - copying_ns),
        Node(1, "kernel", 1, 1, 0, launch, start_ns=100_000, duration_ns=copying_ns),
    )
    recorded = profiled(graphs=[Graph("forward", "forward", nodes=nodes, edges=chain(2))])
    assert ("memcpy-memset-node-overhead" in codes(recorded)) == expected
    if expected:
        result = finding(recorded, "memcpy-memset-node-overhead")
        assert "take 45.0 us of 100 us of GPU work (45%, 1 of 2 nodes)" in result.reason
        assert result.module == ""


@pytest.mark.parametrize(("start", "expected"), [(40_000, True), (35_000, True), (0, False)])
def test_branches_that_run_in_turn(start, expected):
    launch = KernelLaunch(0, (1, 1, 1), (1, 1, 1))
    nodes = (
        Node(0, "kernel", 0, 0, 0, launch, start_ns=0, duration_ns=40_000),
        Node(1, "kernel", 0, 1, 1, launch, start_ns=start, duration_ns=40_000),
        Node(2, "kernel", 0, 2, 0, launch, start_ns=start + 40_000, duration_ns=1_000),
    )
    edges = (Edge(0, 2), Edge(1, 2))
    recorded = profiled(graphs=[Graph("forward", "forward", nodes=nodes, edges=edges)])
    assert ("concurrency-lost-or-false-dependency" in codes(recorded)) == expected
    if expected:
        did = (40_000 - start) / 1e3
        reason = finding(recorded, "concurrency-lost-or-false-dependency").reason
        assert f"could overlap for 40.0 us and did for {time_text(did * US)}" in reason
