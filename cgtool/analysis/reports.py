"""A report of ``check`` or ``verify`` in a form to show: findings with their pages, comparisons as
rows, and the exit code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from cgtool.findings import code, page
from cgtool.model.capture import Frame, Source
from cgtool.model.failure import EXIT_FOUND, EXIT_OK, EXIT_UNKNOWN
from cgtool.model.finding import (
    ERROR,
    NOTE,
    NOTHING_COMPARED,
    SEVERITIES,
    TOO_NOISY,
    WARNING,
    Comparison,
    Finding,
    Report,
)
from cgtool.model.sources import Sources

EAGER_VS_GRAPH_NUMERIC_NOISE = code("eager-vs-graph-numeric-noise")

_SHOWN = 10
"""Tensors of one kind that differ and get a row each."""
_PLURAL = {"output": "outputs", "gradient": "gradients", "state": "state tensors"}


class ExplainedFinding(Finding, frozen=True, kw_only=True):
    """A finding with what its page says."""

    severity: str
    fix: str
    category: str
    title: str

    def __repr__(self) -> str:
        at = f" at {self.place.short}" if self.place else ""
        return f"<{self.severity} {self.code}{at}: {self.reason}>"

    @property
    def place(self) -> Frame | None:
        """The innermost line that the user can edit."""
        return place_of(self.frames)

    @property
    def library(self) -> Frame | None:
        """The line of an installed library that did it, where that is not the user's own code."""
        return self.frames[0] if self.frames and self.frames[0] != self.place else None

    @property
    def chain(self) -> tuple[Frame, ...]:
        """The calls that lead to ``place``, innermost first, without it."""
        return self.frames[self.frames.index(self.place) + 1 :] if self.place else ()


def quoted(findings: Iterable[Finding], sources: Iterable[Source]) -> tuple[Finding, ...]:
    """The findings with their source lines."""
    saved = Sources(sources)
    return tuple(
        msgspec.structs.replace(
            finding,
            source=saved.line(place_of(finding.frames)),
            forward_source=saved.line(place_of(finding.forward)),
        )
        for finding in findings
    )


def explain_findings(findings: Iterable[Finding]) -> tuple[ExplainedFinding, ...]:
    """The findings with their pages, the worst first, then in the given order.

    A code without a page, of a newer version, is its own title; it is a warning by default.
    """
    explained = [explain(finding) for finding in findings]
    return tuple(sorted(explained, key=lambda finding: SEVERITIES.index(finding.severity)))


def explain(finding: Finding) -> ExplainedFinding:
    """A finding with its page."""
    known = page(finding.code)
    severity = finding.severity or (known.head.severity if known else WARNING)
    own = {
        "severity": severity if severity in SEVERITIES else WARNING,
        "fix": finding.fix or (known.head.fix if known else ""),
        "category": known.head.category if known else "",
        "title": known.head.title if known else finding.code,
    }
    return ExplainedFinding(**msgspec.structs.asdict(finding) | own)


def place_of(frames: tuple[Frame, ...]) -> Frame | None:
    """The innermost frame outside installed packages; else the innermost; None without frames."""
    users = user_frames(frames)
    return users[0] if users else frames[0] if frames else None


def caller_of(frames: tuple[Frame, ...]) -> Frame | None:
    """The innermost line outside installed packages that calls another such line."""
    _, caller, *_ = (*user_frames(frames), None, None)
    return caller


def lines_of(chains: Iterable[tuple[Frame, ...]]) -> dict[tuple[Frame, ...], Frame | None]:
    """The line that each of these calls leads to; if several lines call its function, the one that
    calls it."""
    known = set(chains)
    callers: defaultdict[Frame | None, set[Frame | None]] = defaultdict(set)
    for frames in known:
        callers[place_of(frames)].add(caller_of(frames))
    return {
        frames: (caller_of(frames) if len(callers[place_of(frames)]) > 1 else None)
        or place_of(frames)
        for frames in known
    }


def user_frames(frames: Iterable[Frame]) -> tuple[Frame, ...]:
    """The frames outside installed packages."""
    return tuple(frame for frame in frames if "-packages/" not in frame.file)


def is_hazard(finding: ExplainedFinding) -> bool:
    """Errors and warnings; a note costs time or memory, but nothing fails."""
    return finding.severity != NOTE


def comparison_rows(comparisons: Iterable[Comparison]) -> tuple[Comparison, ...]:
    """Comparisons put together: tensors that differ first, each over all trials; then all of a kind
    that are equal, and all that are bit-identical."""
    comparisons = list(comparisons)
    trials = len({comparison.trial for comparison in comparisons})
    rows: list[Comparison] = []
    for equal, exact in ((False, False), (True, False), (True, True)):
        by_kind: dict[str, dict[str, list[Comparison]]] = defaultdict(lambda: defaultdict(list))
        for comparison in comparisons:
            if (comparison.equal, comparison.exact) == (equal, exact):
                by_kind[comparison.kind][comparison.name].append(comparison)
        for kind, by_name in by_kind.items():
            names = list(by_name)
            alone = names[:_SHOWN] if not equal else names if len(names) == 1 else []
            rows += [_row(name, by_name[name], trials) for name in alone]
            if rest := names[len(alone) :]:
                text = f"{len(rest)} more of {kind}" if alone else f"{len(rest)} {_PLURAL[kind]}"
                rows.append(_row(text, [each for name in rest for each in by_name[name]], trials))
    return tuple(rows)


def _row(name: str, comparisons: list[Comparison], all_trials: int) -> Comparison:
    """The largest figures of several comparisons. None stands for "not a number" or a mismatch, but
    for errors, which only some comparisons have."""

    def largest(field: str) -> float | None:
        values = [getattr(comparison, field) for comparison in comparisons]
        known = [value for value in values if value is not None]
        is_nan = len(known) < len(values) and not field.endswith("error")
        return None if is_nan else max(known, default=None)

    trials = list(dict.fromkeys(comparison.trial for comparison in comparisons))
    several = f"{len(trials)} of {all_trials}" if len(trials) < all_trials else f"all {all_trials}"
    fields = ("largest", "relative", "noise", "tolerance", "error", "eager_error")
    return msgspec.structs.replace(
        comparisons[0],
        name=name,
        trial=trials[0] if len(trials) == 1 else several,
        **{field: largest(field) for field in fields},
        mismatch=next((each.mismatch for each in comparisons if each.mismatch), None),
    )


def difference_of(comparison: Comparison) -> float | str | None:
    """The largest absolute difference, or why there is none; None if it is not a number."""
    return comparison.mismatch or comparison.largest


def difference_text(value: float | str | None) -> str:
    if value is None:
        return "not a number"
    return value if isinstance(value, str) else "0" if value == 0 else f"{value:.3g}"


def noise_findings(report: Report) -> tuple[Finding, ...]:
    """A note where replay differs from eager by no more than eager runs differ from each other."""
    within = [
        comparison
        for comparison in report.comparisons
        if comparison.equal and not comparison.exact and (comparison.noise or 0) > 0
    ]
    if not within or any(
        finding.code == EAGER_VS_GRAPH_NUMERIC_NOISE for finding in report.findings
    ):
        return ()
    worst = max(within, key=lambda comparison: comparison.noise or 0)
    return (
        Finding(
            EAGER_VS_GRAPH_NUMERIC_NOISE,
            f"two eager runs are not equal: {worst.name} differs by up to {worst.noise:.3g}, "
            "and the replay differs by no more than that allows",
            evidence=(f"{len(within)} of {len(report.comparisons)} comparisons, {worst.trial}",),
        ),
    )


def exit_code(report: Report) -> int:
    """1 for a tensor that differs or a finding that is an error, 5 when there is no answer."""
    if any(not comparison.equal for comparison in report.comparisons):
        return EXIT_FOUND
    if any(finding.severity == ERROR for finding in explain_findings(report.findings)):
        return EXIT_FOUND
    return EXIT_UNKNOWN if unanswered(report) else EXIT_OK


def unanswered(report: Report) -> str | None:
    """Why a replay could not be compared with eager; None if it could."""
    texts = (note.text for note in report.notes if note.code in (TOO_NOISY, NOTHING_COMPARED))
    return next(texts, None)
