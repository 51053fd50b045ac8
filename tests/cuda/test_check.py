"""What a failed capture adds to the findings of its dry run."""

from __future__ import annotations

import pytest

from cgtool.devices.cuda.check import is_same_cause
from cgtool.model.capture import Frame
from cgtool.model.finding import Code, Finding

ENTRY, LINE, OTHER = (Frame("model.py", line, "f") for line in (1, 5, 9))
SHAPE, HIDDEN = Code("sync-dynamic-shape-op"), Code("hidden-sync-in-stock-module")
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
    phase = "capture backward"
    of_dry_run = Finding(known, "reason", (LINE,), phase=phase)
    of_capture = Finding(failed, "reason", (frame,), phase=phase, evidence=(evidence,))
    assert is_same_cause(of_capture, of_dry_run, {SHAPE}, {(ENTRY,)}) is same
    elsewhere = Finding(known, "reason", (LINE,), phase="capture forward")
    if frame is not LINE:
        assert not is_same_cause(of_capture, elsewhere, {SHAPE}, {(ENTRY,)})
