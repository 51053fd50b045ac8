"""The source files of a capture, as they are on this machine now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cgtool.model.capture import Capture, Frame
from cgtool.model.failure import usage
from cgtool.model.files import is_file
from cgtool.render.text import source_line, source_lines

_AROUND = 5
"""Lines around a used line of an installed library, whose files are not shown whole."""
_MOST_LINES = 20_000
"""Most lines of a file of the user; a longer one is shown around its used lines too."""


class Sources:
    """The files that the lines of a capture are in."""

    def __init__(self, capture: Capture) -> None:
        self._folder_there, self._folder_here = _folder_of_entry(capture)

    def here(self, file: str) -> str:
        """Its path on this machine."""
        there, here = self._folder_there, self._folder_here
        return f"{here}{file.removeprefix(there)}" if there and file.startswith(there) else file

    def line(self, frame: Frame) -> str:
        """The source line of a frame; empty if there is none."""
        return source_line(
            Frame(self.here(frame.file), frame.line, frame.function), of_capture=True
        )

    def files(self, used: Mapping[str, Iterable[int]]) -> list[dict[str, Any]]:
        """Every file of ``used``, with the lines that are shown: ``[[number, text], ...]``."""
        return [self._file(file, sorted(set(lines))) for file, lines in used.items()]

    def _file(self, file: str, used: list[int]) -> dict[str, Any]:
        here = self.here(file)
        lines = source_lines(here)
        shown = range(1, len(lines) + 1)
        if "-packages/" in file or len(lines) > _MOST_LINES:
            near = {
                number
                for line in used
                for number in range(line - _AROUND, line + _AROUND + 1)
                if number in shown
            }
            numbers = sorted(near)
        else:
            numbers = list(shown)
        return {
            "path": file,
            "here": here if lines and here != file else None,
            "numbers": numbers,
            "lines": [lines[number - 1].expandtabs() for number in numbers],
        }


def check_page(output: Path, captures: Iterable[Capture]) -> None:
    """Raises CgtoolError (exit 2) for a page in the place of a source file that it shows."""
    if not is_file(output):
        return
    for capture in captures:
        sources = Sources(capture)
        for file in sorted({sources.here(frame.file) for frame in capture.frames}):
            # Names in a capture may be impossible ones.
            with suppress(OSError, ValueError):
                if output.samefile(file):
                    raise usage(
                        f"{output} is a source file of the capture: the page would overwrite it",
                        fix="name another file",
                    )


def _folder_of_entry(capture: Capture) -> tuple[str, str]:
    """The folder that the ENTRY was in where it was captured, and the one here: a capture of
    another machine finds its files where the current folder has the ENTRY's file."""
    file, spec = capture.entry.file or "", capture.entry.spec.rpartition(":")[0]
    if not spec or not file.endswith(f"/{spec}") or source_lines(file):
        return "", ""
    try:
        here = Path(spec).resolve()
    except (OSError, ValueError):
        return "", ""
    if not source_lines(str(here)):
        return "", ""
    return file.removesuffix(spec), str(here).removesuffix(spec)
