"""The source files of a capture, as they were when it was made."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cgtool.model.capture import Capture, Source
from cgtool.model.failure import usage
from cgtool.model.files import is_file

_NOT_SAVED = "an older cgtool wrote this capture, without its source"


def page_files(capture: Capture, names: Iterable[str]) -> list[dict[str, Any]]:
    """What the page has of each file: its lines, or why there are none."""
    saved = {source.file: source for source in capture.sources}
    why = _NOT_SAVED if not capture.sources else "not saved with the capture"
    return [_file(saved.get(name, Source(name, absent=why))) for name in names]


def _file(source: Source) -> dict[str, Any]:
    return {
        "path": source.file,
        "absent": source.absent,
        "numbers": [block.first + at for block in source.blocks for at in range(len(block.lines))],
        "lines": [line.expandtabs() for block in source.blocks for line in block.lines],
    }


def check_page(output: Path, captures: Iterable[Capture]) -> None:
    """Raises CgtoolError (exit 2) for a page in the place of a source file that it shows."""
    if not is_file(output):
        return
    for file in sorted({frame.file for capture in captures for frame in capture.frames}):
        # Names in a capture may be impossible ones.
        with suppress(OSError, ValueError):
            if output.samefile(file):
                raise usage(
                    f"{output} is a source file of the capture: the page would overwrite it",
                    fix="name another file",
                )
