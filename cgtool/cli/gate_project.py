"""``pyproject.toml``: the budgets of a project's entries, and mistakes in the names of its tables.

``[tool.cgtool.gate]`` is for all entries; ``[tool.cgtool.gate."model.py:build"]`` overrides it for
one. A sub-table ``simulated`` of either replaces it on the simulated device.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rapidfuzz import fuzz, process

from cgtool.analysis.gate.budgets import (
    NAMES,
    Budgets,
    kind_of,
    nearest,
    read_budgets,
    same_entry,
    table_of,
)
from cgtool.model.failure import usage
from cgtool.model.files import is_file, read_bytes

SECTION = "tool.cgtool.gate"
_MIN_SIMILARITY = 80
"""Similarity of names out of 100 (``fuzz.ratio``); swapping two letters leaves more than this."""


class Project(msgspec.Struct, frozen=True):
    """A ``pyproject.toml`` that was read."""

    path: Path
    """The file: entries and baselines are named from its folder."""
    tool: object
    """``[tool.cgtool]``, as parsed from TOML."""

    @property
    def gate(self) -> dict[str, Any]:
        """``[tool.cgtool.gate]``. Raises CgtoolError (exit 2) for a value that should be a table,
        and for a table next to it."""
        where = f"{self.path}: [tool.cgtool]"
        tables = table_of(where, self.tool)
        for name in tables:
            if name != "gate":
                raise usage(f"{where}: unknown table {name[:80]!r}{nearest(name, ['gate'])}")
        return table_of(f"{self.path}: [{SECTION}]", tables.get("gate", {}))


def section(entry: str) -> str:
    """The name of an entry's table."""
    return f'{SECTION}."{entry}"'


def entries(project: Project) -> tuple[str, ...]:
    """The entries and the programs (``python train.py``) that have a table. Raises CgtoolError
    (exit 2) for a value that should be a table."""
    return tuple(name for name in project.gate if ":" in name or " " in name)


def project_budgets(project: Project, spec: str, *, simulated: bool) -> Budgets:
    """The budgets of one entry in a ``pyproject.toml``; every table of it is checked.

    Raises CgtoolError (exit 2) for an unknown name and a value of the wrong kind.
    """
    path, general = project.path, project.gate
    chosen, taken = Budgets(), None
    for name in entries(project):
        where = f"{path}: [{section(name)}]"
        budgets = _of_section(path, section(name), table_of(where, general.pop(name)), simulated)
        if same_entry(spec, name, path.parent):
            if taken is not None:
                raise usage(
                    f"{path}: [{section(taken)}] and [{section(name)}] name the same entry",
                    fix="merge them into one table",
                )
            chosen, taken = budgets, name
    return chosen.over(_of_section(path, SECTION, general, simulated))


def _of_section(path: Path, name: str, table: dict[str, Any], simulated: bool) -> Budgets:
    """The budgets of a GPU or of the simulated device; both are checked."""
    own = {key: value for key, value in table.items() if key != "simulated"}
    real = _of_table(path, f"{path}: [{name}]", own)
    if table.get("simulated") is None:
        return real
    where = f"{path}: [{name}.simulated]"
    other = _of_table(path, where, table_of(where, table["simulated"]))
    return other if simulated else real


def _of_table(path: Path, where: str, table: dict[str, Any]) -> Budgets:
    baseline = table.pop("baseline", None)
    if not isinstance(baseline, str | None):
        raise usage(f"{where} baseline: expected the name of a file, not {kind_of(baseline)}")
    known = [*NAMES, "max-increase", "max-regression"]
    for name in table:
        if name not in known:
            suggestion = nearest(name, [*known, "baseline", "simulated"])
            raise usage(
                f"{where}: unknown key {name[:80]!r}{suggestion}",
                fix="`cgtool gate --help` lists the budgets; the table of an entry is named like "
                'the entry: [tool.cgtool.gate."model.py:build"]',
            )
    budgets = read_budgets(table.items(), lambda name: f"{where} {name}", joint=".")
    file = None if baseline is None else path.parent / baseline
    return msgspec.structs.replace(budgets, baseline=file)


def find_project(folder: Path) -> Project | None:
    """The nearest ``pyproject.toml`` with a ``[tool.cgtool]`` table, from the folder upwards.
    Raises CgtoolError (exit 2) for a file on the way that is not TOML, or misspells that table."""
    for parent in (folder, *folder.parents):
        path = parent / "pyproject.toml"
        if is_file(path):
            data = read_bytes(path, "a pyproject.toml")
            try:
                content = tomllib.loads(data.decode())
            except (ValueError, RecursionError) as error:
                raise usage(f"{path}: not valid TOML: {error}") from error
            _misspelled(path, content)
            tool = content.get("tool")
            if isinstance(tool, dict) and "cgtool" in tool:
                return Project(path, tool["cgtool"])
    return None


def _misspelled(path: Path, content: dict[str, Any]) -> None:
    """Raises CgtoolError (exit 2) for a table that is almost ours: its budgets would be ignored.
    Another tool's name may be similar, but its table has no ``gate``."""
    tables = dict(content)
    for name, value in content.items():
        if isinstance(value, dict):
            tables |= {f"{name}.{inner}": table for inner, table in value.items()}
    for name, table in tables.items():
        near = name == "cgtool" or fuzz.ratio(name.lower(), "tool.cgtool") >= _MIN_SIMILARITY
        if near and name != "tool.cgtool" and isinstance(table, dict) and "gate" in table:
            raise usage(
                f"{path}: [{name[:80]}.gate] is ignored: cgtool does not read it",
                fix=f"did you mean [{SECTION}]?",
            )


def project_targets(project: Project | None) -> list[str]:
    """The entries that have a table in ``pyproject.toml``, as seen from the current folder. Raises
    CgtoolError (exit 2) if there is none."""
    names = [] if project is None else [name for name in entries(project) if ":" in name]
    if project is None or not names:
        where = "there is no [tool.cgtool.gate]" if project is None else f"{project.path} has none"
        raise usage(
            "no TARGET, and no entry in pyproject.toml",
            why=where,
            fix=f"give a TARGET, or a table for an entry: [{section('path/to/file.py:name')}]",
        )
    folder = project.path.parent
    return [os.path.relpath(folder / name) if _names_file(name) else name for name in names]


def misplaced_tables(project: Project, specs: Sequence[str]) -> list[tuple[str, str]]:
    """Tables of entries that are probably misnamed: the one of ``specs`` (the entries gated
    now) that it concerns most, and a sentence.

    A table of another entry is fine: another command may gate it. One that names no entry of the
    project is not, whatever is gated. Raises CgtoolError (exit 2) where it is almost the name of an
    entry that is gated and has no table.
    """
    folder = project.path.parent
    names = entries(project)
    without = [spec for spec in specs if not any(same_entry(spec, name, folder) for name in names)]
    misplaced = []
    for name in names:
        if any(same_entry(spec, name, folder) for spec in specs):
            continue
        missing = _missing(folder, name)
        near = process.extractOne(name, without, scorer=fuzz.ratio, score_cutoff=_MIN_SIMILARITY)
        where = f"{project.path}: [{section(name)}]"
        if near is not None and missing and not _missing(Path(), near[0]):
            raise usage(
                f"{where} names no entry: {missing}",
                why=f"{near[0]} has no table, and the budgets of this one would not apply to it",
                fix=f"did you mean [{section(near[0])}]?",
            )
        if near is not None and (missing or not _names_file(name)):
            misplaced.append((near[0], f"{where} is not used: it is for {name}, not for {near[0]}"))
        elif near is None and missing and any(not _missing(Path(), spec) for spec in specs):
            misplaced.append((specs[0], f"{where} is ignored: {missing}"))
    return misplaced


def _names_file(spec: str) -> bool:
    target = spec.rpartition(":")[0]
    return target.endswith(".py") or os.sep in target


def _missing(folder: Path, spec: str) -> str | None:
    """Why there is no such entry; None if there may be one: modules are not looked for."""
    target, _, name = spec.rpartition(":")
    if not _names_file(spec):
        return None
    path = folder / target
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return f"there is no {path}"
    except (OSError, ValueError):
        return None
    first = name.partition(".")[0]
    if re.search(rf"\b{re.escape(first)}\b", text) or "import *" in text:
        return None
    return f"{path} has no {first}"
