"""A captured workload, ready for trials, and the report on it."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from cgtool.detectors.reporting import FindingLog
from cgtool.devices.device import VerifyTarget
from cgtool.jobs.verify import causes
from cgtool.jobs.verify.evidence import Trial
from cgtool.jobs.verify.liveness import Liveness
from cgtool.jobs.verify.runner import TrialRunner
from cgtool.model.capture import Caveat, Frame
from cgtool.model.finding import Finding
from cgtool.model.options import Progress, VerifyOptions


@dataclass
class Log:
    """What the report will say."""

    progress: Progress
    entry: Frame | None
    """Where the entry point is defined: the line of findings without one."""
    findings: FindingLog = field(default_factory=FindingLog)
    notes: list[Caveat] = field(default_factory=list)
    looked_at: list[str] = field(default_factory=list)

    def add(self, *findings: Finding) -> None:
        for finding in findings:
            frames = finding.frames or ((self.entry,) if self.entry is not None else ())
            self.findings.add(msgspec.structs.replace(finding, frames=frames))

    def note(self, code: str, text: str) -> None:
        if (caveat := Caveat(code, text)) not in self.notes:
            self.notes.append(caveat)


@dataclass(frozen=True)
class Subject:
    """A captured workload, and what was observed before and during the capture."""

    target: VerifyTarget
    options: VerifyOptions
    runner: TrialRunner
    liveness: Liveness
    queries: causes.Queries
    trial: Trial
    """With the inputs of the capture."""
    log: Log

    @property
    def other_kernels(self) -> bool:
        """The replay may run other kernels than eager. The simulated device runs the same ones,
        unless the code asks whether it is being captured."""
        return self.target.has_kernels or bool(self.queries)
