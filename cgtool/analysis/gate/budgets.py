"""Budgets and tolerances: the limits of figures, and the three ways to write them.

Options (``--max-nodes backward=300``), ``[tool.cgtool.gate]`` in ``pyproject.toml`` and the pytest
marker spell a budget alike: ``max-nodes``, ``min-speedup``. A budget is for the whole, or for one
phase.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from cgtool.analysis.gate.metrics import BY_NAME, METRICS, Metric, key
from cgtool.analysis.timing.regression import TOLERANCE
from cgtool.model.failure import CgtoolError, usage
from cgtool.model.measurements import PHASES

SECTION = "tool.cgtool.gate"
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(nan|inf|infinity)", re.I | re.A)
NAMES = {f"{bound}-{metric.name}": (bound, metric) for metric in METRICS for bound in metric.bounds}
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
    """All limits and tolerances of one target."""

    limits: tuple[Budget, ...] = ()
    increases: tuple[Increase, ...] = ()
    baseline: Path | None = None
    """As ``pyproject.toml`` names it, resolved."""

    def over(self, other: Budgets) -> Budgets:
        """Both; where both have a limit or a tolerance of the same figure, this one's."""
        limited = {(limit.bound, limit.metric, limit.phase) for limit in self.limits}
        named = {(increase.metric, increase.phase) for increase in self.increases}
        return Budgets(
            self.limits
            + tuple(
                limit
                for limit in other.limits
                if (limit.bound, limit.metric, limit.phase) not in limited
            ),
            self.increases
            + tuple(
                increase
                for increase in other.increases
                if (increase.metric, increase.phase) not in named
            ),
            self.baseline or other.baseline,
        )

    def allowed(self, metric: Metric, phase: str | None) -> Increase:
        """The tolerance of a figure: its own, or the default, 0 for counts and 1 % for times."""
        own = {(increase.metric, increase.phase): increase for increase in self.increases}
        default = Increase(metric.name, None, 0.0 if metric.exact else TOLERANCE, None, "default")
        return own.get((metric.name, phase)) or own.get((metric.name, None)) or default


def checked(budgets: Budgets) -> Budgets:
    """The same. Raises CgtoolError (exit 2) where one figure has two limits or tolerances, and
    where a minimum is above its maximum."""
    _check_unique(budgets.limits)
    _check_unique(budgets.increases)
    maxima = {
        (limit.metric, limit.phase): limit for limit in budgets.limits if limit.bound == "max"
    }
    for limit in budgets.limits:
        top = maxima.get((limit.metric, limit.phase))
        if limit.bound == "min" and top is not None and limit.limit > top.limit:
            raise usage(
                f"{limit.source} is {limit.limit:g}, which is more than {top.source} of "
                f"{top.limit:g}",
                fix="change one of the two",
            )
    return budgets


def _check_unique(items: Iterable[Budget] | Iterable[Increase]) -> None:
    """The same figure twice in one place is a mistake, not an order of precedence."""
    sources: dict[object, str] = {}
    for item in items:
        figure = (item.metric, item.phase, getattr(item, "bound", None))
        if figure in sources:
            raise usage(
                f"{key(item.metric, item.phase)} is given twice: by {sources[figure]} and by "
                f"{item.source}"
            )
        sources[figure] = item.source


# --- options


def from_options(
    limits: Mapping[str, Sequence[str] | None],
    increases: Sequence[str] = (),
    regression: str | None = None,
) -> Budgets:
    """Budgets from the texts of options: ``{"max-nodes": ["400", "backward=300"]}``,
    ``["nodes=2%"]``. Raises CgtoolError (exit 2) for a text that is not a budget."""
    budgets: list[Budget] = []
    for name, texts in limits.items():
        for text in texts or ():
            phase, equals, number = text.rpartition("=")
            source = f"--{name}"
            value: object = number
            if _NUMBER.fullmatch(number.strip()) is not None:
                value = float(number)
            given = {phase: value} if equals else value
            budgets += limits_of(source, name, given, joint=" ")
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
    return checked(Budgets(tuple(budgets), tuple(allowed)))


# --- values


def limits_of(source: str, name: str, value: object, *, joint: str) -> list[Budget]:
    """``max-nodes`` and its number, or a number for each phase: ``{"backward": 300}``. The source
    of a phase is the source and the phase, with ``joint`` between them.

    Raises CgtoolError (exit 2) for what is not a limit that a figure can have.
    """
    bound, metric = NAMES[name]
    phases = value if isinstance(value, Mapping) else {"all": value}
    budgets = []
    for phase, number in phases.items():
        label = f"{source}{joint}{phase}" if phases is value else source
        # A bool is an int to Python.
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise _not_a_number(label, metric, number)
        which = phase_of(label, metric, str(phase))
        budgets.append(Budget(metric.name, which, bound, _limit(label, metric, number), label))
    return budgets


def _not_a_number(source: str, metric: Metric, value: object) -> CgtoolError:
    shown = value if isinstance(value, str) else repr(value)
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


def _limit(source: str, metric: Metric, number: float) -> float:
    try:
        number = float(number)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise usage(f"{source}: {number} is not a limit")
    if number < 0:
        raise usage(f"{source}: {number:g} is negative, and no figure is")
    if metric.exact and not metric.unit and number != int(number):
        raise usage(f"{source}: {number:g} is not a whole number, and {metric.name} are counted")
    return number


def phase_of(source: str, metric: Metric, text: str) -> str | None:
    """A phase that the metric has; None for ``all``. Raises CgtoolError (exit 2)."""
    if text == "all":
        return None
    if not metric.phases:
        raise usage(f"{source}: {metric.name} is known of the whole only, not of a phase")
    if text not in PHASES or (metric.exact and text == "both"):
        phases = [phase for phase in PHASES if phase != "both" or not metric.exact] + ["all"]
        raise usage(
            f"{source}: no phase {text[:80]!r}{nearest(text, phases)}", fix=f"{', '.join(phases)}"
        )
    return text


def increase_of(source: str, name: str, text: str) -> Increase:
    """``nodes`` or ``nodes.backward``, and ``2%`` or an amount in the metric's unit. Raises
    CgtoolError (exit 2)."""
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
    """``; did you mean NAME?`` of the known name that is most like it; empty where none is."""
    near = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


# --- pyproject.toml


class Project(msgspec.Struct, frozen=True):
    """A ``pyproject.toml`` that was read."""

    path: Path
    """The file: entries and baselines are named from its folder."""
    tool: object
    """``[tool.cgtool]``, as TOML has it."""


def section(entry: str) -> str:
    """The name of an entry's table."""
    return f'{SECTION}."{entry}"'


def entries(project: Project) -> tuple[str, ...]:
    """The entries that have a table. Raises CgtoolError (exit 2) for a value that should be a
    table."""
    return tuple(_general(project).entries)


def project_budgets(project: Project, spec: str, *, simulated: bool) -> Budgets:
    """The budgets of one entry in a ``pyproject.toml``; every table of it is checked.

    ``[tool.cgtool.gate]`` is for all entries; ``[tool.cgtool.gate."model.py:build"]`` overrides it
    for one. A sub-table ``simulated`` of either replaces it on the simulated device.

    Raises CgtoolError (exit 2) for an unknown name and a value of the wrong kind.
    """
    path = project.path
    general = _general(project)
    chosen, taken = Budgets(), None
    for name, table in general.entries.items():
        budgets = _Section(path, section(name), table, inner=True).budgets(simulated=simulated)
        if same_entry(spec, name, path.parent):
            if taken is not None:
                raise usage(
                    f"{path}: [{section(taken)}] and [{section(name)}] name the same entry",
                    fix="put all of it into one table",
                )
            chosen, taken = budgets, name
    return chosen.over(general.budgets(simulated=simulated))


def _general(project: Project) -> _Section:
    where = f"{project.path}: [tool.cgtool]"
    tables = _table(where, project.tool)
    for name in tables:
        if name != "gate":
            raise usage(f"{where}: no table {name[:80]!r}{nearest(name, ['gate'])}")
    return _Section(project.path, SECTION, tables.get("gate", {}))


class _Section:
    """One table, with the tables inside it taken apart."""

    def __init__(self, path: Path, name: str, tree: object, *, inner: bool = False) -> None:
        self.path = path
        self.where = f"{path}: [{name}]"
        self.name = name
        table = _table(self.where, tree)
        self.entries = {key: value for key, value in table.items() if ":" in key and not inner}
        self.simulated = table.get("simulated")
        self.own = {
            key: value
            for key, value in table.items()
            if key not in self.entries and key != "simulated"
        }

    def budgets(self, *, simulated: bool) -> Budgets:
        """Those of a GPU or of the simulated device; both are checked."""
        real = self._read(self.where, self.own)
        if self.simulated is None:
            return real
        where = f"{self.path}: [{self.name}.simulated]"
        other = self._read(where, _table(where, self.simulated))
        return other if simulated else real

    def _read(self, where: str, table: dict[str, Any]) -> Budgets:
        limits: list[Budget] = []
        increases: list[Increase] = []
        baseline = None
        for name, value in table.items():
            source = f"{where} {name}"
            if name == "baseline":
                if not isinstance(value, str):
                    raise usage(f"{source}: the name of a file, not {_kind(value)}")
                baseline = self.path.parent / value
            elif name == "max-regression":
                increases.append(_increase(source, "replay-us", value))
            elif name == "max-increase":
                for metric, amount in _table(source, value).items():
                    phases = amount if isinstance(amount, dict) else {"all": amount}
                    increases += [
                        _increase(source, metric if phase == "all" else f"{metric}.{phase}", each)
                        for phase, each in phases.items()
                    ]
            elif name in NAMES:
                limits += limits_of(source, name, value, joint=".")
            else:
                known = [*NAMES, "max-increase", "max-regression", "baseline"]
                known += ["simulated"] if name != "simulated" else []
                raise usage(
                    f"{where}: no key {name[:80]!r}{nearest(name, known)}",
                    fix="`cgtool gate --help` lists the budgets; a table of an entry is named as "
                    'the entry is: [tool.cgtool.gate."model.py:build"]',
                )
        return checked(Budgets(tuple(limits), tuple(increases), baseline))


def _table(where: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise usage(f"{where}: a table, not {_kind(value)}")
    return value


def _kind(value: object) -> str:
    kinds = {bool: "true or false", str: "text", dict: "a table", list: "a list"}
    return kinds.get(type(value), f"{value}"[:80])


def _increase(source: str, name: str, value: object) -> Increase:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise usage(f"{source} {name}: an amount or a percentage, not {_kind(value)}")
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
