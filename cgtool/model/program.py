"""What ``cgtool run`` tells the Python processes of the program that it starts."""

from __future__ import annotations

from typing import NamedTuple

VARIABLE = "CGTOOL_RECORDING"
"""The environment variable that holds ``Settings``, one a line."""


class Settings(NamedTuple):
    """Read before anything else is imported, so it is plain text."""

    home: str
    """The folder that holds the package cgtool."""
    folder: str
    """Where the processes leave their parts."""
    device: str
    """``--device``; empty without one."""

    @property
    def text(self) -> str:
        """The value of ``VARIABLE``."""
        return "\n".join(self)
