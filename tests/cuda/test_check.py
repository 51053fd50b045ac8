"""What a failed capture adds to the findings of its dry run."""

from __future__ import annotations

import pytest

from cgtool.detectors.reporting import CapturedRegion
from cgtool.devices.cuda.check import is_same_cause, not_refuted
from cgtool.model.capture import Capture, Entry, Environment, Frame, Graph, Node, Origin
from cgtool.model.finding import Code, Finding

ENTRY, LINE, OTHER = (Frame("model.py", line, "f") for line in (1, 5, 9))
SHAPE, HIDDEN = Code("sync-dynamic-shape-op"), Code("hidden-sync-in-stock-module")
STREAM_ZERO, STALE = Code("kernel-on-stream-zero"), Code("accumulate-grad-default-stream")
JOIN = Code("unjoined-side-stream")
FINALIZER, STEP = Code("finalizer-in-capture"), Code("cpu-state-step-counter")
REFUSED = "AcceleratorError: CUDA error: operation not permitted when stream is capturing"
EARLIER = "AcceleratorError: CUDA error: operation failed due to a previous error during capture"


@pytest.mark.parametrize(
    ("known", "failed", "frame", "evidence", "same"),
    [
        # The formula of a backward: CUDA's error has the line of the entry point.
        (SHAPE, HIDDEN, ENTRY, REFUSED, True),
        # An error that the code swallowed: CUDA's next one is at a line that did nothing wrong.
        (SHAPE, FINALIZER, OTHER, EARLIER, True),
        # The same line under another code.
        (SHAPE, HIDDEN, LINE, REFUSED, True),
        # A line of its own, and a dry run that reported nothing that CUDA refuses.
        (SHAPE, HIDDEN, OTHER, REFUSED, False),
        (STEP, HIDDEN, ENTRY, REFUSED, False),
        (STEP, FINALIZER, OTHER, EARLIER, False),
    ],
)
def test_the_error_of_a_capture_is_not_reported_twice(
    known: Code, failed: Code, frame: Frame, evidence: str, same: bool
) -> None:
    of_dry_run = Finding(known, "reason", (LINE,), phase="backward")
    of_capture = Finding(failed, "reason", (frame,), phase="capture backward", evidence=(evidence,))
    assert is_same_cause(of_capture, of_dry_run, {SHAPE}, {(ENTRY,)}) is same
    elsewhere = Finding(known, "reason", (LINE,), phase="forward")
    if frame is not LINE:
        assert not is_same_cause(of_capture, elsewhere, {SHAPE}, {(ENTRY,)})


def test_a_backward_that_waits_for_what_was_not_captured_is_not_reported_twice() -> None:
    of_dry_run = Finding(STREAM_ZERO, "reason", (LINE,), phase="forward")
    of_capture = Finding(STALE, "reason", (ENTRY,), phase="capture backward")
    assert is_same_cause(of_capture, of_dry_run, {STREAM_ZERO}, {(ENTRY,)})


def test_a_capture_refutes_what_cuda_would_have_refused_and_what_became_nodes() -> None:
    dry = CapturedRegion()
    dry.collecting = True
    for code, frame in ((JOIN, LINE), (STREAM_ZERO, LINE), (STREAM_ZERO, OTHER)):
        dry.report(code, "reason", (frame,))
    dry.findings.add(Finding(STEP, "reason", (LINE,)))
    captured = Capture(
        Entry("model.py:f", "callable"),
        Environment("gpu"),
        "",
        "",
        graphs=(Graph("forward", "forward", nodes=(Node(0, "kernel", origin=0),)),),
        frames=(LINE,),
        origins=(Origin(frames=(0,)),),
    )
    left = [(each.code, each.frames) for each in not_refuted(dry, captured)]
    assert left == [(STREAM_ZERO, (OTHER,)), (STEP, (LINE,))]
