"""The report as a whole: any sound capture has one, and it adds up."""

from __future__ import annotations

from io import StringIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from rich.console import Console

from cgtool.analysis.timing.profile import has_times, profile_report
from cgtool.model.capture import Call
from cgtool.model.measurements import Bench, GraphTimes, InputCopy, Peak, Profile, Samples
from cgtool.model.schema import MAX_MEASURE
from cgtool.render.json import encode
from cgtool.render.perfetto import render as render_trace
from cgtool.render.profile_table import render
from tests.builders import small, timed
from tests.recorded import recorded
from tests.strategies import captures, names, sizes

measures = st.floats(0, MAX_MEASURE) | st.sampled_from([0.0, 5e-324, 1.0, MAX_MEASURE])
several = st.lists(measures, max_size=3).map(tuple)
optional = st.none() | measures
roofs = st.floats(1.0, MAX_MEASURE)


@st.composite
def profiled(draw):
    """Sound captures with any times, calls, samples and profile that a file may hold."""
    capture = draw(captures())
    graphs, times = [], []
    for index, graph in enumerate(capture.graphs):
        calls = draw(
            st.lists(
                st.builds(
                    Call,
                    st.just(()),
                    st.just(()),
                    sizes,
                    sizes,
                    st.none() | sizes,
                    st.sampled_from([None, "float32", "bfloat16"]),
                ),
                max_size=4,
            )
        )
        nodes = tuple(
            structs.replace(
                node,
                call=draw(st.integers(0, len(calls) - 1)) if calls else None,
                start_ns=draw(st.none() | sizes),
                duration_ns=draw(st.none() | sizes),
            )
            for node in graph.nodes
        )
        graphs.append(structs.replace(graph, nodes=nodes, calls=tuple(calls)))
        if draw(st.booleans()):
            lists = [draw(several) for _ in range(3)]
            times.append(GraphTimes(index, *lists, draw(optional), draw(several), draw(optional)))
    copies = st.builds(
        InputCopy, names, sizes, measures, optional, st.none() | sizes, st.none() | sizes
    )
    profile = Profile(
        draw(st.sampled_from(["cupti", "profiler", "another"])),
        tuple(times),
        draw(st.none() | roofs),
        tuple(
            draw(st.lists(st.builds(Peak, st.sampled_from(["float32", "tf32"]), roofs), max_size=2))
        ),
        tuple(draw(st.lists(copies, max_size=2))),
        draw(st.none() | roofs),
    )
    bench = Bench(
        tuple(
            Samples(name, phase, draw(several), draw(several))
            for phase in ("forward", "both")
            for name in ("eager", "replay")
        )
    )
    return structs.replace(
        capture,
        graphs=tuple(graphs),
        profile=draw(st.none() | st.just(profile)),
        bench=draw(st.none() | st.just(bench)),
    )


@settings(max_examples=25)
@given(profiled())
def test_any_sound_capture_can_be_explained_and_shown(capture):
    report = profile_report(capture)
    for replay in report.replays:
        assert replay.busy_ns <= replay.work_ns
        assert replay.gaps_ns >= 0 and replay.around_ns >= 0
    buffer = StringIO()
    Console(file=buffer, width=80, color_system=None).print(render(report))
    assert encode("cgtool-profile", profile_report(capture, whole=True))
    assert render_trace(capture)


@pytest.mark.parametrize("sample", ["transformer", "train_step", "two_streams"])
def test_every_node_of_a_recorded_replay_is_timed_and_the_times_add_up(sample):
    report = profile_report(recorded(f"profile-{sample}"))
    assert report.untimed == 0
    for replay in report.replays:
        assert replay.timed == replay.nodes
        assert replay.busy_ns + replay.idle_ns == pytest.approx(replay.replay_ns, rel=0.02)
        # What was traced is longer, by no more than a tenth.
        assert replay.busy_ns <= replay.span_ns < 1.1 * replay.replay_ns


def test_long_gaps_are_named_with_the_nodes_around_them():
    capture = timed(small())
    forward = capture.graphs[0]
    late = tuple(
        node if node.id < 4 else structs.replace(node, start_ns=node.start_ns + 5000)
        for node in forward.nodes
    )
    capture = structs.replace(
        capture, graphs=(structs.replace(forward, nodes=late), capture.graphs[1])
    )
    row, *others = profile_report(capture).gaps
    assert (row.graph, row.after, row.before) == (
        "forward",
        "addmm model.py:12",
        "native_layer_norm model.py:13",
    )
    assert (row.gap.traced_ns, row.gap.ns, row.waits_for, row.over) == (5200, 5200, 1, None)
    assert all(other.graph == "backward" for other in others)


def test_has_times():
    assert has_times(timed(small()))
    assert not has_times(small())
