"""Budgets and tolerances: what a figure is held to, and how that is written.

Options and ``pyproject.toml`` (``cgtool.analysis.gate.pyproject``) spell a budget alike:
``max-nodes``, ``min-speedup``. One holds for the whole, or for one phase:
``--max-nodes backward=300``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

import msgspec

from cgtool.analysis.gate.metrics import BY_NAME, METRICS, Metric, key
from cgtool.analysis.timing.regression import TOLERANCE
from cgtool.model.failure import CgtoolError, usage
from cgtool.model.measurements import PHASES

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(nan|inf|infinity)", re.I | re.A)
NAMES = {f"{bound}-{one.name}": (bound, one) for one in METRICS for bound in one.bounds}
"""``max-nodes`` to its bound and metric: every budget that there is."""


class Budget(msgspec.Struct, frozen=True):
    """A bound on one figure."""

    metric: str
    phase: str | None
    bound: str
    """``max`` or ``min``."""
    limit: float
    source: str
    """Where it was written: ``--max-nodes``, or the file and the key."""


class Increase(msgspec.Struct, frozen=True):
    """How much worse than the baseline a figure may be; of ``speedup``, how much smaller."""

    metric: str
    phase: str | None
    share: float | None
    """0.02 for 2 %; None where ``amount`` is given."""
    amount: float | None
    """In the metric's unit."""
    source: str


class Budgets(msgspec.Struct, frozen=True):
    """All that one target is held to."""

    limits: tuple[Budget, ...] = ()
    increases: tuple[Increase, ...] = ()
    baseline: Path | None = None
    """As ``pyproject.toml`` names it, resolved."""

    def over(self, other: Budgets) -> Budgets:
        """Both, and where both say something of the same figure, this."""
        mine = {(one.bound, one.metric, one.phase) for one in self.limits}
        named = {(one.metric, one.phase) for one in self.increases}
        return Budgets(
            self.limits
            + tuple(one for one in other.limits if (one.bound, one.metric, one.phase) not in mine),
            self.increases
            + tuple(one for one in other.increases if (one.metric, one.phase) not in named),
            self.baseline or other.baseline,
        )

    def allowed(self, metric: Metric, phase: str | None) -> Increase:
        """The tolerance of a figure: its own, or the default, 0 for counts and 1 % for times."""
        own = {(one.metric, one.phase): one for one in self.increases}
        default = Increase(metric.name, None, 0.0 if metric.exact else TOLERANCE, None, "default")
        return own.get((metric.name, phase)) or own.get((metric.name, None)) or default


def checked(budgets: Budgets) -> Budgets:
    """The same. Raises CgtoolError (exit 2) where one figure is given two limits or tolerances, and
    where a minimum lies above its maximum."""
    _once(budgets.limits)
    _once(budgets.increases)
    most = {(one.metric, one.phase): one for one in budgets.limits if one.bound == "max"}
    for one in budgets.limits:
        top = most.get((one.metric, one.phase))
        if one.bound == "min" and top is not None and one.limit > top.limit:
            raise usage(
                f"{one.source} is {one.limit:g}, which is more than {top.source} of {top.limit:g}",
                why="no figure is both at least the one and at most the other",
                fix="change one of the two",
            )
    return budgets


# --- options


def from_options(
    limits: Mapping[str, Sequence[str] | None],
    increases: Sequence[str] = (),
    regression: str | None = None,
) -> Budgets:
    """Budgets from the texts of options: ``{"max-nodes": ["400", "backward=300"]}``,
    ``["nodes=2%"]``. Raises CgtoolError (exit 2) for what is no budget."""
    found: list[Budget] = []
    for name, texts in limits.items():
        bound, metric = NAMES[name]
        for text in texts or ():
            phase, equals, number = text.rpartition("=")
            source = f"--{name}"
            found.append(
                Budget(
                    metric.name,
                    phase_of(source, metric, phase) if equals else None,
                    bound,
                    limit_of(source, metric, _parsed(source, metric, number)),
                    source if not equals else f"{source} {phase}",
                )
            )
    allowed: list[Increase] = []
    for text in increases:
        name, equals, amount = text.partition("=")
        if not equals:
            raise usage(
                f"--max-increase {text}: not METRIC=N or METRIC=N%", fix="--max-increase nodes=2%"
            )
        allowed.append(increase_of("--max-increase", name, amount))
    if regression is not None:
        allowed.append(increase_of("--max-regression", "replay-us", regression))
    return checked(Budgets(tuple(found), tuple(allowed)))


def _once(some: Iterable[Budget] | Iterable[Increase]) -> None:
    """The same figure twice in one place is a slip, not an order of precedence."""
    seen: dict[object, Budget | Increase] = {}
    for one in some:
        which = (one.metric, one.phase, getattr(one, "bound", None))
        if which in seen:
            raise usage(
                f"{key(one.metric, one.phase)} is given twice: by {seen[which].source} and by "
                f"{one.source}"
            )
        seen[which] = one


# --- values


def _parsed(source: str, metric: Metric, text: str) -> float:
    if _NUMBER.fullmatch(text.strip()) is None:
        raise no_number(source, metric, text)
    return float(text)


def no_number(source: str, metric: Metric, given: object) -> CgtoolError:
    shown = given if isinstance(given, str) else repr(given)
    unit = {
        "MiB": "MiB (1,048,576 bytes)",
        "ms": "milliseconds",
        "us": "microseconds",
        "x": "times, as 1.5",
    }.get(metric.unit)
    return usage(
        f"{source}: {str(shown)[:80]!r} is not a number"
        + (f" of {unit}" if unit else "; it is a count"),
        why="the unit is in the name" if unit else None,
        fix="give the number alone",
    )


def limit_of(source: str, metric: Metric, number: float) -> float:
    """A limit that something measured can be held to."""
    try:
        number = float(number)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise usage(f"{source}: {number} is no limit")
    if number < 0:
        raise usage(f"{source}: {number:g} is negative; nothing that is measured is")
    if metric.exact and not metric.unit and number != int(number):
        raise usage(f"{source}: {number:g} is no whole number, and {metric.name} are counted")
    return number


def phase_of(source: str, metric: Metric, text: str) -> str | None:
    if text == "all":
        return None
    if not metric.phases:
        raise usage(f"{source}: {metric.name} is known of the whole only, not of a phase")
    if text not in PHASES or (metric.exact and text == "both"):
        known = [one for one in PHASES if one != "both" or not metric.exact] + ["all"]
        raise usage(
            f"{source}: no phase {text[:80]!r}{nearest(text, known)}", fix=f"{', '.join(known)}"
        )
    return text


def increase_of(source: str, name: str, text: str) -> Increase:
    """``nodes`` or ``nodes.backward``, and ``2%`` or an amount in the metric's unit."""
    metric_name, dot, phase = name.partition(".")
    metric = BY_NAME.get(metric_name)
    if metric is None:
        raise usage(
            f"{source}: no metric {metric_name[:80]!r}{nearest(metric_name, list(BY_NAME))}",
            fix=f"one of {', '.join(BY_NAME)}",
        )
    which = phase_of(source, metric, phase) if dot else None
    number = text.strip().removesuffix("%")
    share = number != text.strip()
    label = f"{source} {name}" if source != "--max-regression" else source
    if not share and not metric.exact:
        raise usage(
            f"{label}: {text[:80]!r} is no percentage",
            why=f"{metric.name} is a time, and times are held against each other by their ratio",
            fix="write 3%",
        )
    if _NUMBER.fullmatch(number) is None:
        raise usage(f"{label}: {text[:80]!r} is neither a percentage nor an amount", fix="write 2%")
    value = float(number)
    if not (math.isfinite(value) and value >= 0):
        raise usage(f"{label}: {text[:80]!r} is no increase", fix="a number of at least 0, or N%")
    if share and metric.larger_is_better and value > 100:
        raise usage(f"{label}: {text[:80]!r} is more than all of it")
    return Increase(
        metric.name, which, value / 100 if share else None, None if share else value, label
    )


def nearest(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""
