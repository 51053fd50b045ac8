"""What the model of a capture's streams says without a device."""

from __future__ import annotations

import functools
import inspect
import threading

import pytest
import torch

from cgtool.detectors.streams import CaptureInProgress, Lane, capturing
from cgtool.devices.simulated.device_model import DeviceModel
from cgtool.findings import code
from cgtool.observe.ops import OpCall

EXPLICIT_SYNCHRONIZE = code("explicit-synchronize")


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


def test_an_op_of_a_node_of_the_default_stream_is_a_stale_node_at_the_call_of_backward():
    region = CaptureInProgress()
    region.collecting = True
    weight = torch.ones((), requires_grad=True)

    def hook(_gradient):
        region.add_node(op(0, autograd_node="torch::autograd::AccumulateGrad"))

    weight.register_hook(hook)
    with capturing(region, Lane("capture"), "capture backward"):
        region.current = region.default
        line = 1 + inspect.currentframe().f_lineno
        (weight * 2).backward()
    (finding,) = region.findings
    assert finding.code == "accumulate-grad-default-stream"
    assert finding.frames[0].line == line


def test_each_thread_has_a_current_stream():
    region, seen = CaptureInProgress(), []
    with capturing(region, Lane("capture"), "capture forward"):
        thread = threading.Thread(target=lambda: seen.append(region.current))
        thread.start()
        thread.join()
    assert seen == [region.default]


@pytest.mark.parametrize(
    ("mode", "in_all_modes", "is_refused"),
    [
        ("global", False, True),
        ("thread_local", False, False),
        ("relaxed", False, False),
        ("thread_local", True, True),  # torch.cuda.synchronize()
    ],
)
def test_the_mode_of_a_capture_decides_what_another_thread_may_call(mode, in_all_modes, is_refused):
    region = CaptureInProgress()
    region.collecting = True

    def call():
        region.refuse(EXPLICIT_SYNCHRONIZE, "Event.synchronize()", in_all_modes=in_all_modes)

    with capturing(region, Lane("capture"), "capture forward", mode):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        assert len(region.findings) == is_refused
        call()
    assert len(region.findings) == is_refused + 1


def test_a_refused_call_without_a_line_has_that_of_the_thread_that_waits_for_it():
    region = CaptureInProgress()
    region.collecting = True
    # A function of the standard library stands for one of PyTorch's.
    call = functools.partial(region.refuse, EXPLICIT_SYNCHRONIZE, "torch.cuda.synchronize()")
    with capturing(region, Lane("capture"), "capture forward"):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    (finding,) = region.findings
    assert finding.frames[0].file == __file__


def test_what_a_thread_runs_is_its_own():
    """A loader works on the host while another thread runs an op on the device."""
    region, seen = CaptureInProgress(), []
    region.on_host = True
    loader = threading.Thread(target=lambda: seen.append(region.on_host))
    loader.start()
    loader.join()
    assert seen == [False]


def test_two_threads_may_be_in_one_stream():
    device = DeviceModel()
    outer, shared = device.stream_class(), device.stream_class()
    entered, left = threading.Event(), threading.Event()

    def work():
        with shared:
            entered.set()
            left.wait()

    thread = threading.Thread(target=work)
    with outer:
        with shared:
            thread.start()
            entered.wait()
        assert device.current is outer
        left.set()
        thread.join()
