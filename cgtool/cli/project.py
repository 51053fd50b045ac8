"""The project's ``pyproject.toml``: read, and its tables of entries held against what is gated."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rapidfuzz import fuzz, process

from cgtool.analysis.gate.budgets import SECTION, Project, entries, same_entry, section
from cgtool.model.failure import usage
from cgtool.model.files import is_file, read_bytes

_ALIKE = 80
"""Of 100 (``fuzz.ratio``): two letters that changed places leave more of any name."""


def find(folder: Path) -> Project | None:
    """The nearest ``pyproject.toml`` with a ``[tool.cgtool]`` table, from the folder upwards.
    Raises CgtoolError (exit 2) for one on the way that is no TOML, or misspells that table."""
    for each in (folder, *folder.parents):
        path = each / "pyproject.toml"
        if is_file(path):
            content = _load(path)
            _misspelt(path, content)
            tool = content.get("tool")
            if isinstance(tool, dict) and "cgtool" in tool:
                return Project(path, tool["cgtool"])
    return None


def _misspelt(path: Path, content: dict[str, Any]) -> None:
    """Raises CgtoolError (exit 2) for a table that is almost ours: its budgets would hold nothing.
    Another tool's name may be near to ours, but not with a table of gates in it."""
    tables = dict(content)
    for name, one in content.items():
        if isinstance(one, dict):
            tables |= {f"{name}.{inner}": value for inner, value in one.items()}
    for name, one in tables.items():
        near = name == "cgtool" or fuzz.ratio(name.lower(), "tool.cgtool") >= _ALIKE
        if near and name != "tool.cgtool" and isinstance(one, dict) and "gate" in one:
            raise usage(
                f"{path}: [{name[:80]}.gate] holds nothing: cgtool does not read it",
                fix=f"did you mean [{SECTION}]?",
            )


def _load(path: Path) -> dict[str, Any]:
    data = read_bytes(path, "a pyproject.toml")
    try:
        return tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise usage(f"{path}: not TOML that can be read: {error}") from error


def doubts(project: Project, specs: Sequence[str]) -> list[tuple[str, str]]:
    """Tables of entries that are probably not those that were meant: a sentence each, with the one
    of ``specs``, the entries that are gated now, that it concerns most.

    A table of another entry is none: it may be gated by another command. One that names no entry of
    the project is, whatever is gated. Raises CgtoolError (exit 2) where it is almost the name of an
    entry that is gated and has no table.
    """
    folder = project.path.parent
    names = entries(project)
    without = [one for one in specs if not any(same_entry(one, name, folder) for name in names)]
    found = []
    for name in names:
        if any(same_entry(one, name, folder) for one in specs):
            continue
        missing = _missing(folder, name)
        near = process.extractOne(name, without, scorer=fuzz.ratio, score_cutoff=_ALIKE)
        where = f"{project.path}: [{section(name)}]"
        if near is not None and missing and not _missing(Path(), near[0]):
            raise usage(
                f"{where} names no entry: {missing}",
                why=f"{near[0]} has no table, and would be held to nothing of this one",
                fix=f"did you mean [{section(near[0])}]?",
            )
        if near is not None and (missing or not _is_file(name)):
            found.append((near[0], f"{where} is not held: it is of {name}, not of {near[0]}"))
        elif near is None and missing and any(not _missing(Path(), one) for one in specs):
            found.append((specs[0], f"{where} holds nothing: {missing}"))
    return found


def _is_file(spec: str) -> bool:
    target = spec.rpartition(":")[0]
    return target.endswith(".py") or os.sep in target


def _missing(folder: Path, spec: str) -> str | None:
    """Why there is no such entry; None where there may be one: modules are not looked for."""
    target, _, name = spec.rpartition(":")
    if not _is_file(spec):
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
