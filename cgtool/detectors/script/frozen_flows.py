"""Random numbers, times and items of iterators that a capture takes, and that reach its ops.

They are never the same, so nothing has to change before a replay: what the functions of a capture
call is observed as in two eager iterations of an entry (``observe.iteration``), and judged by the
same flows (``frozen_values``).
"""

from __future__ import annotations

import sys
from types import FrameType

from cgtool.detectors.frozen_values import FrozenValues
from cgtool.detectors.reporting import Detector, on
from cgtool.observe.host_reads import HostReads
from cgtool.observe.iteration import CallProfile, Iteration, Op, inside
from cgtool.observe.script import events
from cgtool.observe.script.names import locals_of


class FrozenFlows(Detector):
    """Follows each capture as an iteration."""

    phase = "capture"

    def start(self) -> None:
        self._profile: CallProfile | None = None
        """Of the capture in progress, or of one that has failed."""

    @on(events.CaptureBegan)
    def _begin(self, _event: events.CaptureBegan) -> None:
        recorder = self.script.device.recorder
        if recorder is not None:
            iteration = Iteration(record=recorder.record)
            self._profile = CallProfile(HostReads(), iteration, recorder)
            self._profile.__enter__()

    @on(events.OpCaptured)
    def _note_op(self, event: events.OpCaptured) -> None:
        if self._profile is not None and event.op.call is not None:
            in_optimizer = inside(sys._getframe(1), "/torch/optim/")
            op = Op(event.op.call, (), (), False, False, in_optimizer=in_optimizer)
            self._profile.iteration.ops.append(op)

    @on(events.CaptureEnds)
    def _code_ends(self, _event: events.CaptureEnds) -> None:
        if self._profile is not None:
            self._profile.__exit__()
            # In CPython before 3.13 each function that was profiled keeps a dict of its locals.
            frame: FrameType | None = sys._getframe(1)
            while frame is not None:
                locals_of(frame)
                frame = frame.f_back

    @on(events.CaptureEnded)
    def _end(self, _event: events.CaptureEnded) -> None:
        profile, self._profile = self._profile, None
        if profile is None:
            return
        profile.finish()
        reads = profile.reads
        # Of two looks at the same moment only iterators differ: they move on when they are read.
        changes = list(reads.changes(reads.snapshot(), reads.snapshot()))
        frozen = FrozenValues(Iteration(), profile.iteration, reads, changes)
        for finding in frozen.findings():
            self.report(
                finding.code,
                finding.reason,
                finding.frames,
                fix=finding.fix,
                evidence=finding.evidence,
                severity=finding.severity,
            )

    @on(events.ScriptEnded)
    def _script_ended(self, _event: events.ScriptEnded) -> None:
        if self._profile is not None:
            self._profile.__exit__()
            self._profile = None
