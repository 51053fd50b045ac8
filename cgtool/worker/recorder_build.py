"""Has the recorder in C++ compiled where a program was recorded without it."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import cgtool
from cgtool.model.journal import Machine, read_journals

SCRIPT = Path(cgtool.__file__).parent / "torch_compat" / "op_watch.py"


class RecorderBuild:
    """Starts a compiler for each Python of a program that has none, once, at the lowest priority.

    It is no child of the program's, which may wait for its own. It takes half a minute, and is not
    waited for: the runs that follow use the result.
    """

    def __init__(self) -> None:
        self._known = set[Path]()
        """Journals that say where their process captures."""
        self._builds: dict[str, subprocess.Popen[bytes]] = {}
        """By interpreter."""

    def look(self, folder: Path) -> None:
        """Look into the journals of a program that runs."""
        for journal in read_journals(folder):
            if journal.log in self._known:
                continue
            for record in journal.records():
                if isinstance(record, Machine):
                    self._known.add(journal.log)
                    if record.python and record.python not in self._builds:
                        self._build(record.python)
                    break

    def _build(self, python: str) -> None:
        with contextlib.suppress(OSError):  # the Python of another machine, or gone
            self._builds[python] = subprocess.Popen(
                # -P: modules beside the script have names of the standard library.
                [python, "-P", str(SCRIPT), "--once"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the program
            )
