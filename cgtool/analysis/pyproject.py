"""Budgets in ``[tool.cgtool.gate]`` of the nearest ``pyproject.toml``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from cgtool.analysis.budgets import (
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
from cgtool.analysis.metrics import same_entry
from cgtool.model import document
from cgtool.model.failure import usage

SECTION = "tool.cgtool.gate"


def find(folder: Path) -> Path | None:
    """The nearest ``pyproject.toml`` with a ``[tool.cgtool]`` table, from the folder upwards."""
    for each in (folder, *folder.parents):
        path = each / "pyproject.toml"
        if path.is_file() and "cgtool" in _mapping(_load(path).get("tool")):
            return path
    return None


def _load(path: Path) -> dict[str, Any]:
    data = document.content(path, "a pyproject.toml")
    try:
        return tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise usage(f"{path}: not TOML that can be read: {error}") from error


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def from_pyproject(path: Path, spec: str, *, simulated: bool) -> Budgets:
    """What a ``pyproject.toml`` says of one entry; every table of it is checked.

    ``[tool.cgtool.gate]`` holds for all entries, ``[tool.cgtool.gate."model.py:build"]`` goes
    before it for one. A sub-table ``simulated`` of either stands in its place on the simulated
    device.

    Raises CgtoolError (exit 2) for a name that is unknown and a value that is none.
    """
    tables = _mapping(_load(path).get("tool")).get("cgtool")
    where = f"{path}: [tool.cgtool]"
    for name in _table(where, tables):
        if name != "gate":
            raise usage(f"{where}: no table {name[:80]!r}{nearest(name, ['gate'])}")
    tree = _table(f"{path}: [{SECTION}]", _mapping(tables).get("gate", {}))
    general = _Section(path, SECTION, tree)
    chosen, taken = Budgets(), None
    for name, table in general.entries.items():
        section = _Section(path, f'{SECTION}."{name}"', table, inner=True)
        budgets = section.budgets(simulated=simulated)
        if same_entry(spec, name, path.parent):
            if taken is not None:
                raise usage(
                    f'{path}: [{SECTION}."{taken}"] and [{SECTION}."{name}"] are of one entry',
                    fix="put all of it into one table",
                )
            chosen, taken = budgets, name
    return chosen.over(general.budgets(simulated=simulated))


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
                known = [*NAMES, "max-increase", "max-regression", "baseline", "simulated"]
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
