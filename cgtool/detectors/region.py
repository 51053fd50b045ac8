"""Code that is captured, or run as if it were: what the rules ask, and whom they tell."""

from __future__ import annotations

import sys
from typing import Any

from cgtool.detectors.collect import Findings, at_call, refusal
from cgtool.model.capture import Frame
from cgtool.model.finding import Code, Finding
from cgtool.observe.frames import chain_of, columns_of, frames_of, here
from cgtool.observe.ops import OpCall, Record

HOST_WAITS = (
    "the host would wait for work that is only being recorded: CUDA answers 900, "
    "cudaErrorStreamCaptureUnsupported"
)


class Region:
    """What runs now, as far as it matters for a capture."""

    def __init__(self) -> None:
        self.findings = Findings()
        self.collecting = False
        """Go on after a hazard, so that one run finds them all; else the first one raises."""
        self.phase = "capture"
        """``capture forward``."""
        self.on_host = False
        """What runs now touches host tensors only: no work for the device."""
        self.fills_mask = False
        """What runs now is ``x[mask] = number``, which a GPU does as a masked fill."""
        self.function: Any = None
        """The torch function that the code called, outside which no other one runs."""
        self.asked: list[tuple[Frame, ...]] = []
        """Where the code asked whether a stream is capturing, and was told yes."""
        self.call: OpCall | None = None
        self.record: Record | None = None
        """The op that runs, and the record that it belongs to."""

    @property
    def capturing(self) -> bool:
        return False

    def note(self, finding: Finding) -> None:
        """Collect what ends no capture; the place is that of the op that runs, if one does."""
        if self.collecting:
            if self.call is not None and self.record is not None:
                finding = at_call(finding, self.call, self.record)
            self.findings.add(finding)

    def asks_capturing(self) -> None:
        """The user's code asks whether a stream is capturing; the answer is yes."""
        self.asked.append(here(2))

    def report(self, finding: Finding, *, why: str, fix: str | None = None) -> None:
        """Collect a finding, or raise it as the end of the capture."""
        if self.call is not None and self.record is not None:
            finding = at_call(finding, self.call, self.record)
        if not self.collecting:
            raise refusal(finding, why=why, fix=fix)
        self.findings.add(finding)

    def refuse(
        self, code: Code, what: str, *, why: str = HOST_WAITS, fix: str | None = None
    ) -> None:
        """Answer a call that may not happen during capture as CUDA does."""
        if self.capturing:
            chain = chain_of(sys._getframe(1))
            self.report(
                Finding(
                    code,
                    f"{what} is not permitted when a stream is capturing",
                    frames_of(chain),
                    columns=columns_of(chain),
                    phase=self.phase,
                    fix=fix,
                    evidence=(why,),
                ),
                why=why,
                fix="move it out of the captured code",
            )
