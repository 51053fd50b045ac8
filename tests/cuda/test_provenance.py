"""Ops, lines, streams and times of nodes, joined from what was seen while they were captured."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("cuda.bindings.driver")

import torch

from cgtool.devices.cuda import provenance
from cgtool.devices.cuda.session import CudaPhaseGraph, Recorded
from cgtool.devices.cuda.stamps import LaunchLog, LaunchOutsideOps, OpTiming, Stamp
from cgtool.model.capture import Frame
from cgtool.observe.annotations import Annotations
from cgtool.observe.generated import Source
from cgtool.observe.ops import OpRecorder, Record
from cgtool.observe.origins import OriginTable

HOME, SIDE = 70, 71
SESSION = SimpleNamespace(streams={HOME: 0, SIDE: 1})


def captured(**fields):
    return CudaPhaseGraph(
        name="step", phase="step", callable=0, part=None, graph=None, pool=(0, 1), end_ns=900,
        capture_ns=900,
        **{"stamps": [], "recorded": None, **fields},
    )  # fmt: skip


def called_back(log):
    """Stands for CUPTI's callback: a frame between the launch and the log."""
    log.launched()


class Launching(OpRecorder):
    """Every op launches one kernel."""

    def __init__(self, log):
        super().__init__({}, Annotations(), log.count)
        self.log = log
        log.recorder = self

    def execute(self, call, func, args, kwargs):
        self.log.launched()
        return func(*args, **kwargs)


def stamp_of(launch, handle, time_ns, stream=HOME):
    return Stamp(
        handle, time_ns, stream, launch.innermost, next(iter(launch.chain), None), None, (),
        launch.autograd_node, launch.autograd_sequence,
    )  # fmt: skip


def test_a_launch_outside_any_op_is_not_a_backward():
    log = LaunchLog()
    recorder = Launching(log)
    x = torch.ones(3, requires_grad=True)
    with recorder:
        x.sin()
        # Autograd's own thread: numbers begin at 0 there, and no Python frame is above.
        thread = threading.Thread(
            target=lambda: [recorder.begin(torch.ops.aten.cos.default, None) for _ in range(2)]
        )
        thread.start()
        thread.join()
        called_back(log)
        line = sys._getframe().f_lineno - 1
    launches = log.launches
    assert [isinstance(launch, LaunchOutsideOps) for launch in launches] == [False, True]
    stamps = [stamp_of(launch, 10 + at, 100 + at) for at, launch in enumerate(launches)]
    capture = captured(stamps=stamps, recorded=Recorded(recorder.record, launches))
    table = OriginTable()
    (joined,) = provenance.join(
        SimpleNamespace(graphs=[capture], streams=SESSION.streams), [[10, 11]], table
    )
    assert joined.unmatched == []
    kernel = table.origins[joined.origins[1]]
    assert (kernel.op, kernel.forward, kernel.module) == (None, None, None)
    assert table.frames[kernel.frames[0]].line == line
    assert table.origins[joined.origins[0]].op == "aten::sin"


def test_recorded_in_the_capture_each_node_has_the_stream_and_time_of_its_op():
    recorder = OpRecorder({}, Annotations())
    x = torch.ones(3)
    with recorder:
        x.sin()
        x.cos()
        x.exp()
    record: Record = recorder.record
    places = [
        ((0, 1), OpTiming(10, 20, HOME)),
        ((1, 2), OpTiming(30, 40, SIDE)),
        ((3, 4), OpTiming(50, 60, HOME)),
    ]
    for call, (launches, ran) in zip(record.calls, places, strict=True):
        call.launches, call.extra = launches, ran
    capture = captured(exact=record, exact_calls=record.calls)
    table = OriginTable()
    (joined,) = provenance.join(
        SimpleNamespace(graphs=[capture], streams=SESSION.streams), [[1, 2, 3, 4]], table
    )
    ops = [None if at is None else table.origins[at].op for at in joined.origins]
    assert ops == ["aten::sin", "aten::cos", None, "aten::exp"]
    assert joined.streams == [0, 1, None, 0]
    assert joined.times_ns == [20, 40, 50, 60]
    assert joined.unmatched == [2]


def test_a_recorder_in_the_capture_names_the_nodes_that_are_stamped_too():
    """`debug` has both; under the recorder, the frames of stamps are not those of the warm-up."""
    recorder = OpRecorder({}, Annotations())
    with recorder:
        torch.ones(3).sin()
    record: Record = recorder.record
    for call in record.calls:
        call.launches = (0, 0)
    record.calls[-1].launches = (0, 1)
    stamps = [stamp_of(record.calls[-1], 10 + at, 100 + at) for at in range(2)]
    capture = captured(stamps=stamps, recorded=Recorded(Record()), exact_calls=record.calls)
    table = OriginTable()
    session = SimpleNamespace(graphs=[capture], streams=SESSION.streams, exact_record=record)
    joined = provenance._join_stamps(session, capture, [10, 11], table)
    ops = [table.origins[at].op for at in joined.origins]
    assert ops == ["aten::sin", None]
    assert joined.unmatched == [1]


def test_the_lines_of_a_compiled_backward_are_those_of_its_forward():
    table = OriginTable()
    frame = Frame("model.py", 7, "forward")
    source = Source(("aten.gelu_backward", "aten.sum"), (frame,), ("up", "Linear"))
    index = table.add_generated(None, source, (), "CompiledFunctionBackward")
    backward = table.origins[index]
    assert (backward.op, backward.module) == ("aten::gelu_backward+sum", "up")
    assert backward.frames == ()
    assert table.origins[backward.forward].frames == (table.frames.index(frame),)
    index = table.add_generated(None, source, ())
    forward = table.origins[index]
    assert (forward.frames, forward.forward) == ((table.frames.index(frame),), None)
