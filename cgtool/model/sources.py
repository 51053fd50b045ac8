"""The source lines that are quoted: read in the process that ran them, saved with the capture, and
looked up there. No reader of a capture opens the files that it names: they may have changed.
"""

from __future__ import annotations

import linecache
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from msgspec.structs import replace

from cgtool.model import clock
from cgtool.model.capture import Capture, Frame, Source, SourceBlock

_MOST_BYTES = 4 << 20
"""Of all sources of a capture together, and of a file that is read."""
_MOST_LINES = 20_000
"""Of a file that is saved whole."""
_AROUND = 5
"""Lines around each used line of a file that is not."""
_TICK_NS = 10_000_000
"""The system notes the start of a process in such steps."""


class Sources:
    """The saved lines, by file and number."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._blocks = {source.file: source.blocks for source in sources}

    def line(self, frame: Frame | None) -> str:
        """The line of a frame, with its indentation; empty if it is not known."""
        if frame is None:
            return ""
        for block in self._blocks.get(frame.file, ()):
            if block.first <= frame.line < block.first + len(block.lines):
                return block.lines[frame.line - block.first]
        return ""

    def has_moved(self, frame: Frame) -> bool:
        """Whether the file of a frame, as it is now, has another line there than the saved one."""
        linecache.checkcache(frame.file)
        saved, (lines, _) = self.line(frame), _lines(frame.file, sys.maxsize)
        return bool(saved and lines) and saved not in lines[frame.line - 1 : frame.line]


def with_sources(capture: Capture, began_ns: int | None = None, folder: str = "") -> Capture:
    """A capture that was just made, with the sources of its frames; arguments as of
    ``read_sources``."""
    return replace(capture, sources=read_sources(capture.frames, began_ns, folder))


def read_sources(
    frames: Iterable[Frame], began_ns: int | None = None, folder: str = ""
) -> tuple[Source, ...]:
    """The files of the frames, those with most lines first.

    A file that was written after ``began_ns`` (by the system clock; by default, when this process
    began) may hold other lines than those that ran: it is not read. ``folder``: where relative
    names begin, by default the current one.
    """
    began_ns = _process_began_ns() if began_ns is None else began_ns
    used: dict[str, set[int]] = defaultdict(set)
    for frame in frames:
        used[frame.file].add(frame.line)
    room, sources = _MOST_BYTES, []
    for file, numbers in sorted(used.items(), key=lambda item: (-len(item[1]), item[0])):
        lines, absent = _lines(os.path.join(folder, file), began_ns)  # noqa: PTH118
        blocks: tuple[SourceBlock, ...] = ()
        if lines:
            is_whole = "-packages/" not in file and len(lines) <= _MOST_LINES
            blocks = (SourceBlock(1, tuple(lines)),)
            if not is_whole or _bytes(blocks) > room:
                blocks = tuple(_around(lines, sorted(numbers)))
            if _bytes(blocks) > room:
                blocks, absent = (), "too large to be saved"
            room -= _bytes(blocks)
        sources.append(Source(file, blocks, absent))
    return tuple(sources)


def _bytes(blocks: Sequence[SourceBlock]) -> int:
    return sum(len(line) + 1 for block in blocks for line in block.lines)


def _around(lines: Sequence[str], numbers: Sequence[int]) -> Iterator[SourceBlock]:
    near = sorted({line for at in numbers for line in range(at - _AROUND, at + _AROUND + 1)})
    near = [line for line in near if 1 <= line <= len(lines)]
    starts = [at for at, (a, b) in enumerate(pairwise([-1, *near])) if b > a + 1]
    for start, end in pairwise([*starts, len(near)]):
        first, last = near[start], near[end - 1]
        yield SourceBlock(first, tuple(lines[first - 1 : last]))


def _lines(file: str, began_ns: int) -> tuple[list[str], str | None]:
    """The lines of a file, or why they are not known."""
    # The cells of a notebook are files that only their process knows.
    if file not in linecache.cache:
        try:
            size = os.path.getsize(file) if os.path.isfile(file) else None  # noqa: PTH113, PTH202
        except (OSError, ValueError):  # a name that no file can have
            size = None
        if size is None:
            return [], "not found"
        if size > _MOST_BYTES:
            return [], "too large to be saved"
    lines = linecache.getlines(file)
    if not lines:
        return [], "not found, or not text"
    # After its size; None of what was never a file.
    written_s = dict(enumerate(linecache.cache[file])).get(1)
    if isinstance(written_s, float) and written_s * 1e9 > began_ns:
        return [], "changed after the process that ran it had started"
    return [line.rstrip("\n") for line in lines], None


def _process_began_ns() -> int:
    """When this process began, by the system clock."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError):
        return _IMPORTED_NS
    now_ns: int = clock.time_ns()
    return now_ns - int(age_s * 1e9) + _TICK_NS


_IMPORTED_NS: int = clock.time_ns()
