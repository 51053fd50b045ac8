"""Compiles the recorder in C++ while a program that lacks it runs."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import cgtool
from cgtool.model.journal import read_journals
from cgtool.model.records import Machine, NeedsRecorder

SCRIPT = Path(cgtool.__file__).parent / "torch_compat" / "op_watch.py"


class RecorderBuild:
    """One compiler for each interpreter of the program, at the lowest priority.

    It is not a child of the program, which may wait for its own children. It takes half a minute;
    captures that the program makes later use the result.
    """

    def __init__(self) -> None:
        self._known = set[Path]()
        """Journals that say what they need."""
        self._builds: dict[str, subprocess.Popen[bytes]] = {}
        """By interpreter."""

    def look(self, folder: Path) -> None:
        """Look into the journals of a program that runs, or has just ended."""
        for build in self._builds.values():
            build.poll()  # one that has ended stays a zombie otherwise
        for journal in read_journals(folder):
            if journal.log in self._known:
                continue
            for record in journal.records():
                if isinstance(record, NeedsRecorder) and record.python not in self._builds:
                    self._build(record.python)
                if isinstance(record, NeedsRecorder | Machine):  # the first capture comes after it
                    self._known.add(journal.log)
                    break

    def _build(self, python: str) -> None:
        if not Path(python).name.startswith("python"):
            return  # an application that embeds Python
        with contextlib.suppress(OSError):  # the Python of another machine, or gone
            build = self._builds[python] = subprocess.Popen(
                # -P: modules beside the script have names of the standard library.
                [python, "-P", str(SCRIPT), "--once"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the program
            )
            os.setpriority(os.PRIO_PROCESS, build.pid, 19)
            # It takes a gigabyte: where memory runs out, it is ended, and not the program.
            Path(f"/proc/{build.pid}/oom_score_adj").write_text("1000")
