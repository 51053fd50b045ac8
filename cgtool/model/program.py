"""What ``cgtool run`` tells the Python processes of the program that it starts.

Every one of them reads this when it starts, so it imports nothing.
"""

from __future__ import annotations

VARIABLE = "CGTOOL_RECORDING"
"""The environment variable that holds the text of ``Settings``."""


class Settings:
    """Where the tool and the parts of the processes are."""

    def __init__(self, home: str, folder: str, device: str) -> None:
        """``home`` is the folder that holds the package cgtool, ``folder`` is where the processes
        leave their parts, and ``device`` is ``--device``, empty without one."""
        self.home = home
        self.folder = folder
        self.device = device

    @property
    def text(self) -> str:
        """The value of ``VARIABLE``: one a line."""
        return "\n".join((self.home, self.folder, self.device))
