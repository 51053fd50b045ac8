"""The folders in which a worker finds modules: its own, and those of the process that asks.

Pytest, a ``conftest.py`` or a program put folders on ``sys.path`` that no environment variable
names. A worker that did not know them could not import what its parent can.
"""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

_BEFORE_OTHERS = sys.stdlib_module_names - {"test"} | {"torch", "numpy"}
"""Modules that must be the real ones in a worker; nobody imports ``test``."""


def of_this_process() -> tuple[str, ...]:
    """``sys.path`` by full names, without the folder of commands, which Python puts first when it
    runs one of them. A name that is not UTF-8 cannot travel and is left out."""
    commands = sysconfig.get_path("scripts")
    folders = [
        os.path.abspath(one)  # noqa: PTH100 : links stay links
        for one in sys.path
        if isinstance(one, str) and _is_utf8(one)
    ]
    return tuple(dict.fromkeys(one for one in folders if one != commands))


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def extend(folders: Sequence[str]) -> None:
    """Find modules in these folders too, before the installed ones as the asking process does; a
    folder that holds a ``random.py`` comes last, behind Python's own."""
    more = [one for one in folders if one not in sys.path]
    last = [one for one in more if _names(one) & _BEFORE_OTHERS]
    sys.path[:0] = [one for one in more if one not in last]
    sys.path += last


def _names(folder: str) -> set[str]:
    """Modules and packages at the top of a folder."""
    path, found = Path(folder), set()
    with contextlib.suppress(OSError):
        found |= {one.name.partition(".")[0] for one in path.glob("*.py")}
        found |= {one.parent.name for one in path.glob("*/__init__.py")}
    return found
