"""Budgets and tolerances: the limits of figures, and the three ways to write them.

Options (``--max-nodes backward=300``), ``[tool.cgtool.gate]`` in ``pyproject.toml`` and the pytest
marker spell a budget alike: ``max-nodes``, ``min-speedup``. A budget is for the whole, or for one
phase.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from cgtool.analysis.gate.metrics import BY_NAME, METRICS, Metric, key
from cgtool.analysis.timing.regression import TOLERANCE
from cgtool.model.failure import usage
from cgtool.model.measurements import PHASES

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(nan|inf|infinity)", re.I | re.A)
NAMES = {f"{bound}-{metric.name}": (bound, metric) for metric in METRICS for bound in metric.bounds}
"""All budgets: ``max-nodes`` to its bound and metric."""


class Budget(msgspec.Struct, frozen=True):
    """A bound on one figure."""

    metric: str
    phase: str | None
    """Or the event after which it counts; None for the whole."""
    bound: str
    """``max`` or ``min``."""
    limit: float
    source: str
    """Where it comes from: ``--max-nodes``, or the file and the key."""

    @property
    def subject(self) -> tuple[str | None, ...]:
        """The key of a limit: a second one for the same subject would contradict it."""
        return self.metric, self.phase, self.bound


class Increase(msgspec.Struct, frozen=True):
    """How much worse than the baseline a figure may be; for ``speedup``, how much smaller."""

    metric: str
    phase: str | None
    share: float | None
    """0.02 for 2%; None if ``amount`` is given."""
    amount: float | None
    """In the metric's unit."""
    source: str

    @property
    def subject(self) -> tuple[str | None, ...]:
        """The key of a limit: a second one for the same subject would contradict it."""
        return self.metric, self.phase


L = TypeVar("L", Budget, Increase)


class Budgets(msgspec.Struct, frozen=True):
    """All limits and tolerances of one target."""

    limits: tuple[Budget, ...] = ()
    increases: tuple[Increase, ...] = ()
    baseline: Path | None = None
    """The path in ``pyproject.toml``, resolved."""

    def over(self, other: Budgets) -> Budgets:
        """Merge both; if both limit the same figure, this one wins."""
        own: set[object] = {limit.subject for limit in self.limits}
        own |= {increase.subject for increase in self.increases}
        return Budgets(
            self.limits + tuple(limit for limit in other.limits if limit.subject not in own),
            self.increases
            + tuple(increase for increase in other.increases if increase.subject not in own),
            self.baseline or other.baseline,
        )

    def allowed(self, metric: Metric, phase: str | None) -> Increase:
        """The tolerance of a figure: its own, or the default of 0 for counts and 1% for times."""
        own = {increase.subject: increase for increase in self.increases}
        default = Increase(metric.name, None, 0.0 if metric.exact else TOLERANCE, None, "default")
        return own.get((metric.name, phase)) or own.get((metric.name, None)) or default


def checked(budgets: Budgets) -> Budgets:
    """Returns the budgets. Raises CgtoolError (exit 2) where one figure has two limits or
    tolerances, and where a minimum is above its maximum."""
    limits = _by_subject(budgets.limits)
    _by_subject(budgets.increases)
    for limit in budgets.limits:
        top = limits.get((limit.metric, limit.phase, "max"))
        if limit.bound == "min" and top is not None and limit.limit > top.limit:
            raise usage(
                f"{limit.source} is {limit.limit:g}, which is more than {top.source} of "
                f"{top.limit:g}",
                fix="change one of the two",
            )
    return budgets


def _by_subject(limits: Iterable[L]) -> dict[tuple[str | None, ...], L]:
    """The same figure twice in one place is a mistake, not an order of precedence."""
    chosen: dict[tuple[str | None, ...], L] = {}
    for limit in limits:
        first = chosen.setdefault(limit.subject, limit)
        if first is not limit:
            raise usage(
                f"{key(limit.metric, limit.phase)} is given twice: by {first.source} and by "
                f"{limit.source}"
            )
    return chosen


# --- options


def from_options(
    limits: Mapping[str, Sequence[str] | None],
    increases: Sequence[str] = (),
    regression: str | None = None,
) -> Budgets:
    """Budgets from the texts of options: ``{"max-nodes": ["400", "backward=300"]}``,
    ``["nodes=2%"]``. Raises CgtoolError (exit 2) for a text that is not a budget."""
    items: list[tuple[str, object]] = []
    for name, texts in limits.items():
        for text in texts or ():
            phase, equals, number = text.rpartition("=")
            value = float(number) if _NUMBER.fullmatch(number.strip()) else number
            items.append((name, {phase: value} if equals else value))
    for text in increases:
        metric, equals, amount = text.partition("=")
        if not equals:
            raise usage(
                f"--max-increase {text}: not METRIC=N or METRIC=N%", fix="--max-increase nodes=2%"
            )
        items.append(("max-increase", {metric: amount}))
    if regression is not None:
        items.append(("max-regression", regression))
    return read_budgets(items, lambda name: f"--{name}", joint=" ")


# --- values


def read_budgets(
    items: Iterable[tuple[str, object]], source_of: Callable[[str], str], *, joint: str
) -> Budgets:
    """Names (``max-nodes``, ``max-increase``, ``max-regression``) and their values, each a number,
    a text, or one of these for each phase; of ``max-increase``, for each metric. ``source_of``
    says where a name is from, and ``joint`` stands between that and a phase.

    Raises CgtoolError (exit 2) for what is not a budget.
    """
    limits: list[Budget] = []
    increases: list[Increase] = []
    for name, value in items:
        source = source_of(name)
        if name == "max-regression":
            increases.append(_increase(source, "replay-us", value))
        elif name == "max-increase":
            for metric, amount in table_of(source, value).items():
                phases = amount if isinstance(amount, dict) else {"all": amount}
                increases += [
                    _increase(source, metric if phase == "all" else f"{metric}.{phase}", each)
                    for phase, each in phases.items()
                ]
        else:
            limits += _limits(source, name, value, joint)
    return checked(Budgets(tuple(limits), tuple(increases)))


def _limits(source: str, name: str, value: object, joint: str) -> list[Budget]:
    """``max-nodes`` and its number, or a number for each phase: ``{"backward": 300}``."""
    bound, metric = NAMES[name]
    phases = value if isinstance(value, Mapping) else {"all": value}
    budgets = []
    for phase, number in phases.items():
        label = f"{source}{joint}{phase}" if phases is value else source
        # A bool is an int to Python.
        if isinstance(number, bool) or not isinstance(number, int | float):
            shown = str(number if isinstance(number, str) else repr(number))[:80]
            unit = _UNITS.get(metric.unit)
            raise usage(
                f"{label}: {shown!r} is not a number" + (unit or "; it is a count"),
                why="the unit is in the name" if unit else None,
                fix=_FIX_OF_AFTER if metric.after else "write only the number",
            )
        which = phase_of(label, metric, str(phase))
        budgets.append(Budget(metric.name, which, bound, _limit(label, metric, number), label))
    return budgets


_FIX_OF_AFTER = "write ready=0, in pyproject.toml and in Python { ready = 0 }"
_UNITS = {
    "MiB": " of MiB (1,048,576 bytes)",
    "ms": " of milliseconds",
    "us": " of microseconds",
    "x": " such as 1.5",
    "%": " of percent",
}


def _limit(source: str, metric: Metric, number: float) -> float:
    try:
        limit = float(number)
    except OverflowError:
        limit = math.inf
    if not math.isfinite(limit):
        raise usage(f"{source}: {limit} is not a limit")
    if limit < 0:
        raise usage(f"{source}: {limit:g} is negative, but figures are not")
    if metric.exact and not metric.unit and limit != int(limit):
        raise usage(f"{source}: {limit:g} is not a whole number, but {metric.name} are counts")
    return limit


def phase_of(source: str, metric: Metric, text: str) -> str | None:
    """A phase that the metric has, or the event after which it counts; None for ``all``. Raises
    CgtoolError (exit 2)."""
    if metric.after is not None:
        if text == "all":
            raise usage(
                f"{source}: {metric.name} needs the name of an event",
                fix=_FIX_OF_AFTER,
            )
        return text
    if text == "all":
        return None
    if not metric.phases:
        raise usage(f"{source}: {metric.name} is known only for the whole, not for a phase")
    phases = [phase for phase in PHASES if phase != "both" or not metric.exact] + ["all"]
    if text not in phases:
        raise usage(
            f"{source}: unknown phase {text[:80]!r}{nearest(text, phases)}",
            fix=f"{', '.join(phases)}",
        )
    return text


def increase_of(source: str, name: str, text: str) -> Increase:
    """``nodes`` or ``nodes.backward``, and ``2%`` or an amount in the metric's unit. Raises
    CgtoolError (exit 2)."""
    metric_name, dot, phase = name.partition(".")
    metric = BY_NAME.get(metric_name)
    if metric is None:
        raise usage(
            f"{source}: unknown metric {metric_name[:80]!r}{nearest(metric_name, list(BY_NAME))}",
            fix=f"one of {', '.join(BY_NAME)}",
        )
    which = phase_of(source, metric, phase if dot else "all")
    number = text.strip().removesuffix("%")
    share = number != text.strip()
    label = f"{source} {name}" if source != "--max-regression" else source
    if not share and not metric.exact:
        raise usage(
            f"{label}: {text[:80]!r} is not a percentage",
            why=f"{metric.name} is a time, and times are compared by their ratio",
            fix="write 3%",
        )
    if _NUMBER.fullmatch(number) is None:
        raise usage(f"{label}: {text[:80]!r} is neither a percentage nor an amount", fix="write 2%")
    value = float(number)
    if not (math.isfinite(value) and value >= 0):
        raise usage(
            f"{label}: {text[:80]!r} is not an increase", fix="a number of at least 0, or N%"
        )
    if share and metric.larger_is_better and value > 100:
        raise usage(f"{label}: {text[:80]!r} is more than all of it")
    return Increase(
        metric.name, which, value / 100 if share else None, None if share else value, label
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """``; did you mean NAME?`` of the known name that is most like it; empty if none is."""
    near = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def table_of(where: str, value: object) -> dict[str, Any]:
    """A copy. Raises CgtoolError (exit 2) for what is not a table."""
    if not isinstance(value, dict):
        raise usage(f"{where}: expected a table, not {kind_of(value)}")
    return {**value}


def kind_of(value: object) -> str:
    """``text``, ``a list``: what a value is, or the value itself."""
    kinds = {bool: "true or false", str: "text", dict: "a table", list: "a list"}
    return kinds.get(type(value), f"{value}"[:80])


def _increase(source: str, name: str, value: object) -> Increase:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise usage(f"{source} {name}: an amount or a percentage, not {kind_of(value)}")
    return increase_of(source, name, str(value))


def same_entry(left: str, right: str, folder: Path | None = None) -> bool:
    """Whether two specs name one entry: as text, or as files; ``right`` may be relative to
    ``folder``, the current one by default."""

    def absolute(spec: str, below: Path) -> str:
        file, colon, name = spec.rpartition(":")
        return os.path.normpath(below / file) + colon + name if file.endswith(".py") else spec

    if os.path.normpath(left) == os.path.normpath(right):
        return True
    here = Path.cwd()
    return absolute(left, here) == absolute(right, folder or here)
