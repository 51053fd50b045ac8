"""What PyTorch's allocator has reserved on the device: how often, how much, and by which line.

The allocator counts it. It knows lines while it keeps the Python stack of each block, which takes a
microsecond: once they are asked for, or if the program has it do so.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from typing import Any

import torch

from cgtool.model import clock
from cgtool.model.capture import Frame
from cgtool.model.records import Allocated
from cgtool.observe.frames import is_internal_file
from cgtool.torch_compat.allocator import lists_memory, memory_segments
from cgtool.torch_compat.private import (
    MissingPrivateName,
    record_memory_history,
    records_memory_history,
)


class Allocations:
    """Of all devices of this process."""

    def __init__(self) -> None:
        self._reserved = defaultdict[int, tuple[int, int]](lambda: (0, 0))
        """By device: how often the allocator has reserved memory, and how many bytes."""
        self._segments: set[tuple[int, int]] | None = None
        """Device and address of those that are known; None while nobody asks for lines."""

    def new(self, *, lines: bool) -> list[Allocated]:
        """Since the last call; what has no line has the same size each. ``lines``: from now on,
        they are asked for."""
        now_ns, found = clock.time_ns(), []
        grown = {}
        for device in range(torch.cuda.device_count()):
            statistics: Any = torch.cuda.memory_stats_as_nested_dict(device)
            if not statistics:
                continue
            # Sums over the life of the process: nothing is taken off when memory is given back.
            now = statistics["num_device_alloc"], statistics["reserved_bytes"]["all"]["allocated"]
            count, size = (a - b for a, b in zip(now, self._reserved[device], strict=True))
            self._reserved[device] = now
            if size > 0:
                # Expandable segments grow without being counted.
                grown[device] = max(count, 1), size
        if lines and self._segments is None:
            self._keep_lines()
        elif grown and self._segments is not None:
            for segment in self._new_segments():
                device, size = segment["device"], segment["total_size"]
                times, rest = grown.get(device, (0, 0))
                if times and size <= rest and (frames := user_frames(segment)):
                    grown[device] = times - 1, rest - size
                    found.append(Allocated(now_ns, size, device, frames))
        for device, (times, rest) in grown.items():
            for number in range(times):
                of_one = rest // times + (rest % times if number == 0 else 0)
                found.append(Allocated(now_ns, of_one, device, ()))
        return found

    def lines(self, addresses: Set[int]) -> dict[int, tuple[Frame, ...]]:
        """The calls that allocated memory at some of these addresses, innermost first."""
        known = False
        with contextlib.suppress(MissingPrivateName):
            known = records_memory_history()
        with _without_inductor():
            segments = memory_segments() if known else []
        blocks = itertools.chain.from_iterable(each["blocks"] for each in segments)
        found = ((each["address"], each) for each in blocks if each["address"] in addresses)
        return {address: frames for address, each in found if (frames := user_frames(each))}

    def _keep_lines(self) -> None:
        self._new_segments()
        with contextlib.suppress(MissingPrivateName):
            if lists_memory() and not records_memory_history():
                record_memory_history(enabled="state", context="state", stacks="python")

    def _new_segments(self) -> list[dict[str, Any]]:
        with _without_inductor():
            segments = memory_segments()
        known = self._segments or ()
        self._segments = {(each["device"], each["address"]) for each in segments}
        return [each for each in segments if (each["device"], each["address"]) not in known]


@contextlib.contextmanager
def _without_inductor() -> Iterator[None]:
    """PyTorch asks Inductor for the lines of generated code, and would import it, which takes
    seconds."""
    names = vars(torch)
    if names.setdefault("_inductor", None) is not None:
        yield
        return
    try:
        yield
    finally:
        if names.get("_inductor") is None:
            names.pop("_inductor", None)


_NATIVE = (".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp")
"""How names of files of C++ end: a program's own history has its calls, too (``stacks="all"``), on
line 0 where their file is unknown."""


def user_frames(entry: Mapping[str, Any]) -> tuple[Frame, ...]:
    """The calls outside PyTorch that led to a block, a segment or an event of a snapshot."""
    return tuple(
        Frame(each["filename"], each["line"], each["name"])
        for each in entry.get("frames") or ()
        if each["line"]
        and not each["filename"].endswith(_NATIVE)
        and not is_internal_file(each["filename"])
    )
