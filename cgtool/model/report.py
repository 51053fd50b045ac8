"""Reports that ``cgtool check`` and ``cgtool verify`` wrote with ``--format json``, read back."""

from __future__ import annotations

from pathlib import Path

from cgtool.model import document
from cgtool.model.finding import REPORT_VERSION, Report

_COMMANDS = {"cgtool-check": "check", "cgtool-verify": "verify"}
_WHAT = "a report of check or verify"
_FIX = "write it with `cgtool check ENTRY --format json -o FILE`, or `cgtool verify`"


def read(path: Path) -> Report:
    """Read a report. Raises CgtoolError (exit 2) for every file that is not one."""
    data = document.content(path, _WHAT)
    newest = dict.fromkeys(_COMMANDS, REPORT_VERSION)
    name = document.schema(path, data, _WHAT, newest, _FIX)
    found = document.decode(path, data, Report, _WHAT, _FIX)
    if found.command != _COMMANDS[name]:
        raise document.bad(path, _WHAT, f"{name} of the command {found.command[:80]!r}", _FIX)
    return found
