"""The report of ``cgtool verify``: rows of comparisons, and the exit code."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

import msgspec

from cgtool.analysis.findings import explain_findings
from cgtool.findings.registry import code
from cgtool.model.failure import EXIT_FOUND, EXIT_OK, EXIT_UNKNOWN
from cgtool.model.finding import ERROR, Comparison, Finding, Report

SHOWN = 10
"""Tensors of one trial that differ and get a row each."""
TOO_NOISY = "too-noisy"
EAGER_VS_GRAPH_NUMERIC_NOISE = code("eager-vs-graph-numeric-noise")


class Row(msgspec.Struct, frozen=True):
    """A tensor that differs, or all others of a kind in one trial."""

    name: str
    trial: str
    equal: bool
    exact: bool
    largest: float | None
    """Largest absolute difference; None where only one of the two values is a number."""
    relative: float | None
    noise: float | None
    tolerance: float | None


def rows(comparisons: Iterable[Comparison]) -> tuple[Row, ...]:
    """In the order of the trials; within a trial, tensors that differ come first."""
    result: list[Row] = []
    for _, trial in groupby(comparisons, key=lambda comparison: comparison.trial):
        in_trial = list(trial)
        for kind in dict.fromkeys(comparison.kind for comparison in in_trial):
            of_kind = [comparison for comparison in in_trial if comparison.kind == kind]
            different = [comparison for comparison in of_kind if not comparison.equal]
            result += [_row(comparison.name, [comparison]) for comparison in different[:SHOWN]]
            if different[SHOWN:]:
                name = f"{len(different) - SHOWN} more of {kind}"
                result.append(_row(name, different[SHOWN:]))
            equal = [comparison for comparison in of_kind if comparison.equal]
            if equal:
                result.append(_row(_name(kind, equal), equal))
    return tuple(result)


_PLURAL = {"output": "outputs", "gradient": "gradients", "state": "state tensors"}


def _name(kind: str, comparisons: list[Comparison]) -> str:
    return (
        comparisons[0].name
        if len(comparisons) == 1
        else f"{len(comparisons)} {_PLURAL.get(kind, kind)}"
    )


def _row(name: str, comparisons: list[Comparison]) -> Row:
    def most(values: Iterable[float | None]) -> float | None:
        known = list(values)
        return None if None in known else max(value for value in known if value is not None)

    return Row(
        name=name,
        trial=comparisons[0].trial,
        equal=all(comparison.equal for comparison in comparisons),
        exact=all(comparison.exact for comparison in comparisons),
        largest=most(comparison.largest for comparison in comparisons),
        relative=most(comparison.relative for comparison in comparisons),
        noise=most(comparison.noise for comparison in comparisons),
        tolerance=most(comparison.tolerance for comparison in comparisons),
    )


def noise(report: Report) -> tuple[Finding, ...]:
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
            f"two eager runs are not equal: {worst.name} differs by up to {worst.noise:.3g}, and "
            "the replay by no more than that allows",
            evidence=(f"{len(within)} of {len(report.comparisons)} comparisons, {worst.trial}",),
        ),
    )


def exit_code(report: Report) -> int:
    """1 for a tensor that differs or a finding that is an error, 5 when eager is too noisy."""
    if any(not comparison.equal for comparison in report.comparisons):
        return EXIT_FOUND
    if any(finding.severity == ERROR for finding in explain_findings(report.findings)):
        return EXIT_FOUND
    if any(note.code == TOO_NOISY for note in report.notes):
        return EXIT_UNKNOWN
    return EXIT_OK
