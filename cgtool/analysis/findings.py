"""Findings joined with their pages: what every screen and report of findings shows."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from cgtool.findings.registry import page
from cgtool.model.capture import Frame
from cgtool.model.finding import NOTE, SEVERITIES, WARNING, Finding


class ExplainedFinding(msgspec.Struct, frozen=True):
    """A finding with what its page says."""

    code: str
    severity: str
    category: str
    title: str
    reason: str
    fix: str
    place: Frame | None
    """The innermost line that the user can edit."""
    columns: tuple[int, int] | None
    """Of the expression in the line of ``place``; see ``Finding.columns``."""
    library: Frame | None
    """The line of an installed library that did it, where that is not the user's own code."""
    chain: tuple[Frame, ...]
    """The calls that lead to ``place``, innermost first, without it."""
    module: str | None
    forward: Frame | None
    phase: str | None
    evidence: tuple[str, ...]
    times: int


def explain_findings(findings: Iterable[Finding]) -> tuple[ExplainedFinding, ...]:
    """The findings with their pages, the worst first, then in the given order.

    A code without a page, of a newer version, is its own title; it is a warning by default.
    """
    explained = [_explained(finding) for finding in findings]
    return tuple(sorted(explained, key=lambda finding: SEVERITIES.index(finding.severity)))


def _explained(finding: Finding) -> ExplainedFinding:
    known = page(finding.code)
    place = place_of(finding.frames)
    depth = finding.frames.index(place) if place is not None else 0
    severity = finding.severity or (known.head.severity if known else WARNING)
    return ExplainedFinding(
        code=finding.code,
        severity=severity if severity in SEVERITIES else WARNING,
        category=known.head.category if known else "",
        title=known.head.title if known else finding.code,
        reason=finding.reason,
        fix=finding.fix or (known.head.fix if known else ""),
        place=place,
        columns=finding.columns,
        library=finding.frames[0] if depth else None,
        chain=finding.frames[depth + 1 :],
        module=finding.module,
        forward=place_of(finding.forward),
        phase=finding.phase,
        evidence=finding.evidence,
        times=finding.times,
    )


def place_of(frames: tuple[Frame, ...]) -> Frame | None:
    """The innermost frame outside installed packages; else the innermost; None without frames."""
    users = (frame for frame in frames if "-packages/" not in frame.file)
    return next(users, frames[0] if frames else None)


def is_hazard(finding: ExplainedFinding) -> bool:
    """Errors and warnings; a note costs time or memory, but nothing fails."""
    return finding.severity != NOTE
