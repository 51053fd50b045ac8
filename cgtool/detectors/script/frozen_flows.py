"""Random numbers, times, items of iterators and counters that a capture takes, and that reach its
ops.

They are never the same, so nothing has to change before a replay: what the functions of a capture
call is observed as in two eager iterations of an entry (``observe.iteration``), and judged by the
same flows (``frozen_values``).
"""

from __future__ import annotations

import sys

from cgtool.detectors.frozen_values import CPU_STATE_STEP_COUNTER, FrozenValues
from cgtool.detectors.reporting import Detector
from cgtool.observe.frames import callers
from cgtool.observe.host_reads import HostReads
from cgtool.observe.iteration import CallProfile, Iteration
from cgtool.observe.kept_ops import Op, inside
from cgtool.observe.script import events
from cgtool.observe.script.names import locals_of


class FrozenFlows(Detector):
    """Follows each capture as an iteration."""

    phase = "capture"

    def start(self) -> None:
        self._profile: CallProfile | None = None
        """Of the capture in progress."""

    def on_capture_began(self, _event: events.CaptureBegan) -> None:
        recorder = self.script.device.recorder
        if recorder is not None:
            iteration = Iteration(record=recorder.record)
            self._profile = CallProfile(HostReads(), iteration, recorder)
            self._profile.__enter__()

    def on_op_captured(self, event: events.OpCaptured) -> None:
        if self._profile is not None and event.op.call is not None:
            in_optimizer = inside(sys._getframe(1), "/torch/optim/")
            op = Op(event.op.call, (), (), False, False, in_optimizer=in_optimizer)
            self._profile.iteration.ops.append(op)

    def on_capture_ends(self, _event: events.CaptureEnds) -> None:
        if self._profile is not None:
            self._profile.__exit__()
            # In CPython before 3.13 each function that was profiled keeps a dict of its locals.
            for frame in callers(sys._getframe(1)):
                locals_of(frame)

    def on_capture_ended(self, _event: events.CaptureEnded) -> None:
        profile, self._profile = self._profile, None
        if profile is None:
            return
        profile.finish()
        reads = profile.reads
        frozen = FrozenValues(Iteration(), profile.iteration, reads, list(reads.changing()))
        for finding in frozen.findings():
            self.report(
                finding.code,
                finding.reason,
                finding.frames,
                fix=finding.fix,
                evidence=finding.evidence,
                # The capture itself has shown that it changes.
                severity=None if finding.code == CPU_STATE_STEP_COUNTER else finding.severity,
            )

    def on_capture_failed(self, _event: events.CaptureFailed) -> None:
        self._stop()

    def on_script_ended(self, _event: events.ScriptEnded) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._profile is not None:
            self._profile.__exit__()
            self._profile = None
