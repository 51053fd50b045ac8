"""Warnings that PyTorch raises under cgtool's modes are shown at the user's line."""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path
from typing import Any

from cgtool.observe.frames import chain_of, frame_of, is_internal_file

_OWN = str(Path(__file__).parent.parent) + "/"


_FORWARD = "Traceback of forward call"
_FRAME = re.compile(r'  File "(.*)", line \d+, in .*')


def _users_part(text: str) -> str:
    """The warning of ``detect_anomaly`` without the frames that are not the user's."""
    kept: list[str] = []
    keep = True
    for line in text.splitlines():
        frame = _FRAME.fullmatch(line)
        if frame is not None:
            keep = not is_internal_file(frame[1])
        elif not line.startswith("    "):
            keep = True
        if keep:
            kept.append(line)
    if not any(map(_FRAME.fullmatch, kept)):
        kept = [line.partition(_FORWARD)[0] for line in kept]
    return "\n".join(kept)


def show_at_users_line() -> None:
    """A warning from C++ names the innermost Python frame, which is often one of cgtool's."""
    before = warnings.showwarning

    def showwarning(
        message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        if _FORWARD in str(message):
            message = _users_part(str(message))
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
