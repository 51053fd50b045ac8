"""Begins to record a process when it imports PyTorch."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from types import ModuleType

from cgtool.model.program import Settings
from cgtool.recording.imports import after_import


def begin(text: str) -> None:
    """Record this process from the moment on that it imports PyTorch. ``text``: ``Settings``."""
    settings = Settings(*text.split("\n"))
    folder = Path(settings.folder)

    def imported(_torch: ModuleType) -> None:
        try:
            from cgtool.recording.process import record

            record(folder, settings.device)
        except Exception as error:  # the program goes on, unrecorded
            reason = f"{sys.executable}: {type(error).__name__}: {error}"
            with contextlib.suppress(OSError):
                (folder / f"{os.getpid()}-{time.time_ns()}.lost").write_text(reason)

    after_import("torch", imported)
