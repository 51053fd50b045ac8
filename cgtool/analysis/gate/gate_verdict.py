"""What a gate says of one figure."""

from __future__ import annotations

import msgspec

from cgtool.model.capture import Frame

PASS, FAIL, UNKNOWN = "pass", "fail", "cannot-tell"
ERROR = "error"
"""Of a target that could not be measured at all: there is no figure to judge."""
WORST = (ERROR, FAIL, UNKNOWN, PASS)


class Verdict(msgspec.Struct, frozen=True):
    """One figure, and what it was held to. Figures are in the metric's unit."""

    metric: str
    """``nodes``, ``nodes.forward``; ``baseline`` when the two cannot be compared at all."""
    unit: str
    verdict: str
    """``pass``, ``fail`` or ``cannot-tell``."""
    held_to: str
    """``at most 400``, ``baseline 22``, ``baseline 33.0 us + 3%``."""
    source: str
    """Where the budget or the tolerance was written; ``default``."""
    text: str = ""
    """What was found, and why that is the verdict."""
    measured: float | None = None
    """A count, or the median of a time."""
    low: float | None = None
    high: float | None = None
    """The interval of a time that was held to a budget."""
    limit: float | None = None
    baseline: float | None = None
    ratio: float | None = None
    """Of a time: measured over baseline."""
    ratio_low: float | None = None
    ratio_high: float | None = None
    more_runs: int | None = None
    """How many more runs an answer would take, about; 1 where these were disturbed."""
    compared: bool = False
    """Whether this is a time that these runs, or further ones, hold against a baseline."""
    open: bool = False
    """Whether more runs may tell what these do not."""
    evidence: tuple[str, ...] = ()
    """What brought it, a line each."""
    frame: Frame | None = None
    """The user's line that has most to do with it."""


def number(value: float, unit: str = "") -> str:
    """``1,234``, ``62.5 MiB``, ``33.0 us``, ``2.93x``: four digits at least where there are."""
    if value == int(value) and abs(value) < 1e15:
        text = f"{int(value):,}"
    else:
        text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return text + ("x" if unit == "x" else f" {unit}" if unit else "")
