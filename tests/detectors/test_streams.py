"""What the model of a capture's streams says without a device."""

from __future__ import annotations

import threading

from cgtool.detectors.streams import CaptureInProgress, Lane, capturing
from cgtool.observe.ops import OpCall


def op(index, **fields):
    return OpCall(index, "aten::mm", (), None, None, (), 0, **fields)


def test_autograd_joins_the_streams_of_a_backward():
    region, capture_stream, side = CaptureInProgress(), Lane("capture"), Lane("side")
    region.collecting = True
    with capturing(region, capture_stream, "capture backward"):
        region.add_node(op(0))
        region.current = side
        node = region.add_node(op(1, autograd_node="MmBackward0"))
        region.current = capture_stream
        region.check_joins()
    assert node is not None and node.dependencies == (0,)
    assert not len(region.findings)


def test_other_work_on_a_side_stream_is_not_forked():
    region, side = CaptureInProgress(), Lane("side")
    region.collecting = True
    with capturing(region, Lane("capture"), "capture forward"):
        region.current = side
        region.add_node(op(0))
    assert [finding.code for finding in region.findings] == ["side-stream-not-forked"]


def test_each_thread_has_a_current_stream():
    region, seen = CaptureInProgress(), []
    with capturing(region, Lane("capture"), "capture forward"):
        thread = threading.Thread(target=lambda: seen.append(region.current))
        thread.start()
        thread.join()
    assert seen == [region.default]


def test_what_a_thread_runs_is_its_own():
    """A loader works on the host while another thread runs an op on the device."""
    region, seen = CaptureInProgress(), []
    region.on_host = True
    loader = threading.Thread(target=lambda: seen.append(region.on_host))
    loader.start()
    loader.join()
    assert seen == [False]
