"""Warnings that PyTorch raises under cgtool's modes are shown at the user's line."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

from cgtool.record.frames import chain_of, frame_of

_OWN = str(Path(__file__).parent.parent) + "/"


def show_at_users_line() -> None:
    """A warning from C++ names the innermost Python frame, which is often one of cgtool's."""
    before = warnings.showwarning

    def showwarning(
        message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        if file is not None or not filename.startswith(_OWN):
            before(message, category, filename, lineno, file, line)
            return
        chain = chain_of(sys._getframe(1))
        if chain:
            frame = frame_of(chain[0])
            before(message, category, frame.file, frame.line, file, line)
        elif sys.stderr is not None:
            sys.stderr.write(f"{category.__name__}: {message}\n")

    warnings.showwarning = showwarning
