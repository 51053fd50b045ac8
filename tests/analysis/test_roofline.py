"""How near nodes come to the roofs, and what holds a graph back."""

from __future__ import annotations

import pytest

from cgtool.analysis.timing import roofline
from cgtool.analysis.timing.gaps import timeline_of
from cgtool.model.capture import Call, Copy, Fill, Function, Graph, KernelLaunch, Node
from cgtool.model.measurements import GraphTimes, Peak, Profile
from tests.builders import CUTLASS, GEMM, capture, chain

MEMORY = 4e12
"""Bytes a second: 4,000 a nanosecond."""
PEAKS = (Peak("float32", 50e12), Peak("tf32", 400e12), Peak("bfloat16", 800e12))


def profiled(nodes, calls=(), *, functions=(GEMM,), replay_ns=None, launch_ns=(), profiled=True):
    """One graph on an H200 with those roofs, nodes in a row."""
    start, laid = 0, []
    for number, node in enumerate(nodes):
        laid.append(
            Node(
                number,
                node.type,
                call=node.call,
                kernel=node.kernel,
                copy=node.copy,
                fill=node.fill,
                start_ns=start,
                duration_ns=node.duration_ns,
            )
        )
        start += node.duration_ns
    graph = Graph(
        "forward",
        "forward",
        nodes=tuple(laid),
        edges=chain(len(laid)),
        calls=tuple(calls),
        launch_ns=launch_ns,
    )
    times = (GraphTimes(0, (replay_ns,)),) if replay_ns else ()
    return capture(
        [graph],
        functions=tuple(Function(name) for name in functions),
        profile=Profile("cupti", times, MEMORY, PEAKS) if profiled else None,
    )


def kernel(duration_ns, call=0, *, blocks=1, active=None, function=0):
    launch = KernelLaunch(function, (blocks, 1, 1), (128, 1, 1), active_blocks=active)
    return Node(0, "kernel", call=call, kernel=launch, duration_ns=duration_ns)


def utilization(node, call=None, **more):
    recorded = profiled([node], [call] if call else [], **more)
    return roofline.utilizations(recorded, recorded.graphs[0])[0]


def judged(recorded):
    return roofline.judge(
        recorded, timeline_of(recorded, 0), roofline.utilizations(recorded, recorded.graphs[0])
    )


@pytest.mark.parametrize(
    ("read", "written", "flops", "bound", "memory"),
    [
        (3_000_000, 1_000_000, None, "memory", 1.0),
        (2_400_000, 0, None, "memory", 0.6),
        (2_300_000, 0, None, "latency", 0.575),
        (4_500_000, 0, None, "memory", 1.125),
        (4_700_000, 0, None, "cache", 1.175),
        (6_000_000, 2_000_000, None, "cache", 2.0),
        (4_000, 0, 45_000_000, "compute", 0.001),
        (4_000, 0, 5_000_000, "latency", 0.001),
        (3_000_000, 0, 45_000_000, "compute", 0.75),
    ],
)
def test_bound_by_the_nearer_roof(read, written, flops, bound, memory):
    result = utilization(
        kernel(1000), Call((), (), read, written, flops, "float32"), functions=("k",)
    )
    assert result.bound == bound
    assert result.memory == pytest.approx(memory)
    assert result.compute == (None if flops is None else pytest.approx(flops / 50e6))


@pytest.mark.parametrize(
    ("function", "roof"),
    [
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x32_execute_kernel", 400e12),
        ("_ZN7cutlass7Kernel2I48cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4EEv", 400e12),
        (CUTLASS, 50e12),
        (GEMM, 50e12),
    ],
)
def test_float32_on_tensor_cores_is_compared_with_their_roof(function, roof):
    call = Call((), (), 1, 1, 10**7, "float32")
    assert utilization(kernel(1000), call, functions=(function,)).compute == pytest.approx(
        1e13 / roof
    )


def test_without_the_roof_of_its_dtype_a_node_that_multiplies_is_not_called_slow():
    call = Call((), (), 4000, 0, 10**9, "float64")
    result = utilization(kernel(1000), call)
    assert (result.compute, result.bound) == (None, None)


def test_the_kernels_of_one_call_share_its_bytes_by_time():
    call = Call((), (), 4_000_000, 0, None, None)
    recorded = profiled([kernel(750), kernel(250)], [call])
    first, second = roofline.utilizations(recorded, recorded.graphs[0])
    assert (first.bytes, second.bytes) == (3_000_000, 1_000_000)
    assert first.memory == second.memory == pytest.approx(1.0)


def test_copies_and_fills_know_their_own_bytes():
    copy = Node(0, "memcpy", copy=Copy("dtod", 1_000_000), duration_ns=1000)
    assert utilization(copy).memory == pytest.approx(0.5)
    fill = Node(0, "memset", fill=Fill(4_000_000, 0), duration_ns=1000)
    assert utilization(fill).bound == "memory"
    host = Node(0, "memcpy", copy=Copy("htod", 50_000), duration_ns=1000)
    assert (utilization(host).bound, utilization(host).memory) == ("host link", None)


def test_how_full_the_device_is():
    # 132 multiprocessors hold eight blocks each.
    assert utilization(kernel(1000, None, blocks=528, active=8)).waves == pytest.approx(0.5)
    assert utilization(kernel(1000, None, blocks=2112, active=8)).waves == pytest.approx(2.0)
    assert utilization(kernel(1000, None)).waves is None


def test_nothing_recorded_is_nothing_known():
    for result in (
        utilization(kernel(1000)),
        utilization(kernel(1000), Call((), (), 9, 9), profiled=False),
    ):
        assert (result.bound, result.memory, result.compute) == (None, None, None)
    assert utilization(kernel(0), Call((), (), 9, 9)).bound is None


def test_a_graph_that_the_host_cannot_launch_fast_enough():
    recorded = profiled([kernel(1000)], replay_ns=2000.0, launch_ns=(5000, 6000, 7000))
    judgment = judged(recorded)
    assert judgment.kind == "launch"
    assert judgment.sentence == (
        "Forward is launch-bound: the host takes 6.00 us to launch 2.00 us of GPU work."
    )


def test_a_graph_at_the_memory_roof():
    calls = [Call((), (), 3_600_000, 0), Call((), (), 4, 0)]
    judgment = judged(profiled([kernel(1000, 0), kernel(250, 1)], calls, replay_ns=1500.0))
    assert judgment.kind == "memory"
    assert judgment.shares == pytest.approx({"memory": 2 / 3, "latency": 1 / 6, "gaps": 1 / 6})
    assert judgment.at_roofs_ns == pytest.approx(900, abs=1)
    assert judgment.sentence == (
        "Forward is memory-bound: 67% of its time is in nodes near peak memory bandwidth, and at "
        "peak bandwidth and FLOP/s its 1.50 us would take 900 ns."
    )


def test_gaps_count_as_latency():
    calls = [Call((), (), 3_600_000, 0), Call((), (), 4, 0)]
    nodes = [kernel(1000, 0), kernel(250, 1, blocks=66, active=1)]
    judgment = judged(profiled(nodes, calls, replay_ns=3000.0))
    assert judgment.kind == "latency"
    assert judgment.filled == pytest.approx(0.5)
    assert judgment.sentence.startswith(
        "Forward is latency-bound: kernels fill 50% of the GPU, gaps between nodes take 58% of the "
    )


def test_what_is_not_known_is_not_judged():
    judgment = judged(profiled([kernel(1000, None)], replay_ns=1100.0))
    assert (judgment.kind, judgment.at_roofs_ns) == (None, None)
    assert judgment.sentence.endswith("the bytes and FLOPs of 91% of its 1.10 us are unknown.")
