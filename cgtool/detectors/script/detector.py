"""What all detectors of a script share, and the detector of exceptions."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import TypeVar

from cgtool.detectors.capture_errors import explain
from cgtool.detectors.reporting import FindingLog
from cgtool.model.capture import Frame
from cgtool.model.finding import Code, Finding
from cgtool.observe.frames import columns_of, exception_frames, frames_of
from cgtool.observe.script import events
from cgtool.observe.script.script import ObservedScript

Event = TypeVar("Event")
Handler = TypeVar("Handler", bound=Callable[..., None])


def on(event: type[Event]) -> Callable[[Handler], Handler]:
    """The decorated method of a ``Detector`` is called with every event of this type."""

    def mark(method: Handler) -> Handler:
        method.handled_event = event  # type: ignore[attr-defined]
        return method

    return mark


class Detector:
    """Subscribes its methods that are marked with ``on``, and reports findings."""

    def __init__(self, script: ObservedScript, findings: FindingLog) -> None:
        self.script = script
        self.findings = findings
        for method in vars(type(self)).values():
            event = getattr(method, "handled_event", None)
            if event is not None:
                script.subscribe(event, functools.partial(method, self))
        self.start()

    def start(self) -> None:
        """Set up the state of the detector."""

    def report(
        self,
        code: Code,
        reason: str,
        frames: tuple[Frame, ...] | None = None,
        *,
        phase: str = "script",
        fix: str | None = None,
        evidence: tuple[str, ...] = (),
        severity: str | None = None,
        module: str | None = None,
    ) -> None:
        """Add a finding; without ``frames`` it is at the line of the script that runs now."""
        chain = self.script.chain() if frames is None else ()
        self.findings.add(
            Finding(
                code,
                reason,
                frames_of(chain) if frames is None else frames,
                columns=columns_of(chain),
                module=module,
                phase=phase,
                fix=fix,
                evidence=evidence,
                severity=severity,
            )
        )


_REPORTED = "_cgtool_reported"


def is_reported(error: BaseException) -> bool:
    """True if the finding behind an exception is reported already."""
    return bool(getattr(error, _REPORTED, False))


def mark_reported(error: BaseException) -> None:
    """The finding behind the exception is reported: nothing needs to explain it any more."""
    with contextlib.suppress(AttributeError, TypeError):
        setattr(error, _REPORTED, True)


class Errors(Detector):
    """What the exceptions of ``CUDAGraph`` and of captured code mean."""

    @on(events.CallRaised)
    def _explain_call(self, event: events.CallRaised) -> None:
        self.explain(event.error, event.phase, self.script.place())

    @on(events.CaptureFailed)
    def _explain_capture(self, event: events.CaptureFailed) -> None:
        inside = event.code_error
        if inside is not None:
            self.explain(inside, "capture")
        elif not event.graph.disturbed:
            self.explain(event.end_error, "capture", self.script.place())
        mark_reported(event.end_error)

    def explain(self, error: BaseException, phase: str, frames: tuple[Frame, ...] = ()) -> bool:
        """Report what an exception means; False if it does not speak of a capture.

        The finding is at ``frames``, else at the line that raised.
        """
        if is_reported(error):
            return True
        finding = explain(error, phase)
        if finding is None:
            return False
        mark_reported(error)
        self.report(
            finding.code,
            finding.reason,
            frames or exception_frames(error) or None,
            fix=finding.fix,
            evidence=finding.evidence,
            phase=phase,
        )
        return True
