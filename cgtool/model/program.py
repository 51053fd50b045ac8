"""The settings that ``cgtool run`` passes to the Python processes of the program, in one
environment variable.

Every one of them reads this when it starts, so it imports nothing.
"""

from __future__ import annotations

VARIABLE = "CGTOOL_RECORDING"
"""The environment variable that holds the text of ``Settings``."""
PADDED = "padded_"
"""Before a name of ``cgtool.note``: what a graph computes, where the name alone is the need."""


class Settings:
    """Where the tool and the journals of the processes are."""

    def __init__(
        self,
        home: str,
        folder: str,
        device: str,
        times: str,
        step: str,
        ready_after: str,
        watchdog: str,
    ) -> None:
        """``home`` is the folder that holds the package cgtool, ``folder`` is where the processes
        leave their journals, ``device`` is ``--device``, ``ready_after`` is the number of
        ``--ready-after``, and the others are not empty with the options of their names."""
        self.home, self.folder, self.device = home, folder, device
        self.times, self.step, self.ready_after, self.watchdog = times, step, ready_after, watchdog
        self.text = "\n".join((home, folder, device, times, step, ready_after, watchdog))
        """The value of ``VARIABLE``."""
