"""Budgets in ``[tool.cgtool.gate]`` of a ``pyproject.toml``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from cgtool.analysis.gate.budgets import (
    NAMES,
    Budget,
    Budgets,
    Increase,
    checked,
    increase_of,
    limit_of,
    nearest,
    no_number,
    phase_of,
)
from cgtool.analysis.gate.metrics import same_entry
from cgtool.model.failure import usage

SECTION = "tool.cgtool.gate"


class Project(msgspec.Struct, frozen=True):
    """A ``pyproject.toml`` that was read."""

    path: Path
    """The file: its folder is the one that entries and baselines are named from."""
    tool: object
    """``[tool.cgtool]``, as TOML has it."""


def section(entry: str) -> str:
    """The name of an entry's table."""
    return f'{SECTION}."{entry}"'


def entries(project: Project) -> tuple[str, ...]:
    """The entries that have a table. Raises CgtoolError (exit 2) for what is no table."""
    return tuple(_general(project).entries)


def budgets_of(project: Project, spec: str, *, simulated: bool) -> Budgets:
    """What a ``pyproject.toml`` says of one entry; every table of it is checked.

    ``[tool.cgtool.gate]`` holds for all entries, ``[tool.cgtool.gate."model.py:build"]`` goes
    before it for one. A sub-table ``simulated`` of either stands in its place on the simulated
    device.

    Raises CgtoolError (exit 2) for a name that is unknown and a value that is none.
    """
    path = project.path
    general = _general(project)
    chosen, taken = Budgets(), None
    for name, table in general.entries.items():
        budgets = _Section(path, section(name), table, inner=True).budgets(simulated=simulated)
        if same_entry(spec, name, path.parent):
            if taken is not None:
                raise usage(
                    f"{path}: [{section(taken)}] and [{section(name)}] are of one entry",
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
    """One table, with the tables inside it told apart."""

    def __init__(self, path: Path, name: str, tree: object, *, inner: bool = False) -> None:
        self.path = path
        self.where = f"{path}: [{name}]"
        self.name = name
        table = _table(self.where, tree)
        self.entries = {} if inner else {name: one for name, one in table.items() if ":" in name}
        self.simulated = table.get("simulated")
        self.own = {
            name: one
            for name, one in table.items()
            if name not in self.entries and name != "simulated"
        }

    def budgets(self, *, simulated: bool) -> Budgets:
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
                increases.append(_toml_increase(source, "replay-us", value))
            elif name == "max-increase":
                for metric, one in _table(source, value).items():
                    increases += _toml_increases(source, metric, one)
            elif name in NAMES:
                limits += _toml_limits(source, name, value)
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
    known = {bool: "true or false", str: "text", dict: "a table", list: "a list"}
    return known.get(type(value), f"{value}"[:80])


def _toml_limits(source: str, name: str, value: object) -> list[Budget]:
    bound, metric = NAMES[name]
    phases = value if isinstance(value, dict) else {"all": value}
    found = []
    for phase, number in phases.items():
        label = f"{source}.{phase}" if phases is value else source
        # A bool is an int to Python, and nobody's budget.
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise no_number(label, metric, number)
        found.append(
            Budget(
                metric.name,
                phase_of(label, metric, phase),
                bound,
                limit_of(label, metric, number),
                label,
            )
        )
    return found


def _toml_increases(source: str, name: str, value: object) -> list[Increase]:
    if isinstance(value, dict):
        return [
            _toml_increase(source, name if phase == "all" else f"{name}.{phase}", one)
            for phase, one in value.items()
        ]
    return [_toml_increase(source, name, value)]


def _toml_increase(source: str, name: str, value: object) -> Increase:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise usage(f"{source} {name}: an amount or a percentage, not {_kind(value)}")
    return increase_of(source, name, str(value))
