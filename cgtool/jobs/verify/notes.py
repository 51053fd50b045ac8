"""What verification has to say, as it comes up."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from cgtool.detectors.collect import Findings
from cgtool.model.capture import Caveat, Frame
from cgtool.model.finding import Finding
from cgtool.program.workload import Workload


def line_of(frames: tuple[Frame, ...]) -> str:
    """``model.py:12`` of the innermost frame."""
    return f"{frames[0].file}:{frames[0].line}" if frames else ""


@dataclass
class Told:
    """Findings, notes, and what was looked at."""

    workload: Workload
    findings: Findings = field(default_factory=Findings)
    notes: list[Caveat] = field(default_factory=list)
    looked: list[str] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        """A finding that no line is known of gets that of the entry point."""
        entry = self.workload.entry_frame()
        if not finding.frames and entry is not None:
            finding = msgspec.structs.replace(finding, frames=(entry,))
        self.findings.add(finding)

    def note(self, code: str, text: str) -> None:
        self.notes.append(Caveat(code, text))

    def places(self) -> set[tuple[Frame, ...]]:
        """The innermost frames of the findings so far."""
        return {one.frames[:1] for one in self.findings}
