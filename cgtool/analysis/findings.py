"""Findings made ready to show: joined with their pages, placed, sorted."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from cgtool.findings.registry import page
from cgtool.model.capture import Frame
from cgtool.model.finding import NOTE, SEVERITIES, WARNING, Finding


class Shown(msgspec.Struct, frozen=True):
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


def _is_library(frame: Frame) -> bool:
    return "-packages/" in frame.file


def place_of(frames: tuple[Frame, ...]) -> Frame | None:
    """The innermost frame that is not in an installed package; the innermost of all otherwise."""
    own = next((one for one in frames if not _is_library(one)), None)
    return own or (frames[0] if frames else None)


def show(findings: Iterable[Finding]) -> tuple[Shown, ...]:
    """The worst first, then in the order in which they were met."""
    found = [_shown(one) for one in findings]
    return tuple(sorted(found, key=lambda one: SEVERITIES.index(one.severity)))


def _shown(one: Finding) -> Shown:
    known = page(one.code)
    place = place_of(one.frames)
    at = one.frames.index(place) if place is not None else 0
    severity = one.severity or (known.head.severity if known else WARNING)
    return Shown(
        code=one.code,
        severity=severity if severity in SEVERITIES else WARNING,
        category=known.head.category if known else "",
        title=known.head.title if known else one.code,
        reason=one.reason,
        fix=one.fix or (known.head.fix if known else ""),
        place=place,
        columns=one.columns,
        library=one.frames[0] if at else None,
        chain=one.frames[at + 1 :],
        module=one.module,
        forward=place_of(one.forward),
        phase=one.phase,
        evidence=one.evidence,
        times=one.times,
    )


def is_hazard(one: Shown) -> bool:
    """Errors and warnings; a note costs time or memory, and fails nothing."""
    return one.severity != NOTE
