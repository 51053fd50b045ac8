"""What a verification comes to: rows of comparisons, and one word."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

import msgspec

from cgtool.analysis.findings import show
from cgtool.findings.registry import code
from cgtool.model.failure import EXIT_FOUND, EXIT_OK, EXIT_UNKNOWN
from cgtool.model.finding import ERROR, Comparison, Finding, Report

SHOWN = 10
"""Tensors of one trial that differ and get a row of their own."""
TOO_NOISY = "too-noisy"
EAGER_VS_GRAPH_NUMERIC_NOISE = code("eager-vs-graph-numeric-noise")


class Row(msgspec.Struct, frozen=True):
    """One tensor that differs, or all others of a kind in one trial."""

    name: str
    trial: str
    equal: bool
    exact: bool
    largest: float | None
    """Largest absolute difference; None where one is not a number and the other is."""
    relative: float | None
    noise: float | None
    tolerance: float | None


def rows(comparisons: Iterable[Comparison]) -> tuple[Row, ...]:
    """In the order of the trials; within one, what differs first."""
    found: list[Row] = []
    for trial, each in groupby(comparisons, key=lambda one: one.trial):
        some = list(each)
        for kind in dict.fromkeys(one.kind for one in some):
            of_kind = [one for one in some if one.kind == kind]
            differ = [one for one in of_kind if not one.equal]
            found += [_row(one.name, [one]) for one in differ[:SHOWN]]
            if differ[SHOWN:]:
                found.append(_row(f"{len(differ) - SHOWN} more of {kind}", differ[SHOWN:]))
            same = [one for one in of_kind if one.equal]
            if same:
                found.append(_row(_named(kind, same), same))
        del trial
    return tuple(found)


_PLURAL = {"output": "outputs", "gradient": "gradients", "state": "state tensors"}


def _named(kind: str, some: list[Comparison]) -> str:
    return some[0].name if len(some) == 1 else f"{len(some)} {_PLURAL.get(kind, kind)}"


def _row(name: str, some: list[Comparison]) -> Row:
    def most(values: Iterable[float | None]) -> float | None:
        known = list(values)
        return None if None in known else max(one for one in known if one is not None)

    return Row(
        name=name,
        trial=some[0].trial,
        equal=all(one.equal for one in some),
        exact=all(one.exact for one in some),
        largest=most(one.largest for one in some),
        relative=most(one.relative for one in some),
        noise=most(one.noise for one in some),
        tolerance=most(one.tolerance for one in some),
    )


def noise(report: Report) -> tuple[Finding, ...]:
    """What is different and means nothing: within the difference of eager to itself."""
    within = [
        one for one in report.comparisons if one.equal and not one.exact and (one.noise or 0) > 0
    ]
    if not within or any(one.code == EAGER_VS_GRAPH_NUMERIC_NOISE for one in report.findings):
        return ()
    worst = max(within, key=lambda one: one.noise or 0)
    return (
        Finding(
            EAGER_VS_GRAPH_NUMERIC_NOISE,
            f"eager is not equal to itself: {worst.name} differs by up to {worst.noise:.3g} from "
            "run to run, and the replay by no more than that allows",
            evidence=(f"{len(within)} of {len(report.comparisons)} comparisons, {worst.trial}",),
        ),
    )


def exit_code(report: Report) -> int:
    """1 for a tensor that differs or an error that was found, 5 when eager is too noisy to tell."""
    if any(not one.equal for one in report.comparisons):
        return EXIT_FOUND
    if any(one.severity == ERROR for one in show(report.findings)):
        return EXIT_FOUND
    if any(one.code == TOO_NOISY for one in report.notes):
        return EXIT_UNKNOWN
    return EXIT_OK
