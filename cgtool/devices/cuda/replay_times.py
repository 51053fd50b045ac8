"""GPU times of a program that runs (``cgtool run --times``): by CUPTI, else by CUDA events.

CUPTI is used from the moment on that the program initializes CUDA, because it may fork before. It
is given up while PyTorch's profiler runs, which replaces the callbacks of others.
"""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import torch

from cgtool.devices.cuda.activity import GpuTimes
from cgtool.devices.cuda.cupti import CuptiUnavailable
from cgtool.devices.cuda.driver import relaxed
from cgtool.model.journal import JournalWriter
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import (
    PROFILER_BEGINS,
    PROFILER_ENDS,
    MissingPrivateName,
    PatchPoint,
    when_initialized,
)

Say = Callable[[str], None]
EVERY = 16
"""Without CUPTI, the first replay of a graph and every 16th after it lie between events."""
_PENDING = 64


class ReplayTimes:
    """Times of the graphs of this process, for ``recorder.recorder``."""

    def __init__(self, journal: Callable[[], JournalWriter], say: Say, patches: Patches) -> None:
        """``journal`` is that of this process; ``say`` is called with what cannot be timed."""
        self._journal = journal
        self._say = say
        self._patches = patches
        self._times: GpuTimes | EventTimes | None = None
        self._process = 0
        self._is_over = False
        for begins in PROFILER_BEGINS:
            self._around(begins, self._pause, None)
        self._around(PROFILER_ENDS, None, self._resume)
        try:
            when_initialized(self._start)
        except MissingPrivateName as error:
            say(f"no GPU times: {error}")

    def new_executable(self, graph: Any, number: int) -> None:
        """A capture has an executable graph, or another one than before."""
        if self._times is not None and self._is_ours:
            self._times.follow(graph, number)

    def finish(self) -> None:
        self._is_over = True
        if self._times is not None and self._is_ours:
            self._times.finish()
            if dropped := self._times.dropped():
                self._say(f"CUPTI had no memory for {dropped:,} records of GPU times")

    @property
    def _is_ours(self) -> bool:
        return self._process == os.getpid()

    def _start(self) -> None:
        # An exception in here would end the program.
        if self._is_over:
            return
        self._process = os.getpid()
        try:
            self._times = GpuTimes(self._journal())
        except Exception as error:
            self._say(
                f"GPU time outside graphs: {error}; the first replay of a graph and every "
                f"{EVERY}th are timed with CUDA events instead"
            )
            self._times = EventTimes(self._journal(), self._patches)

    def _around(
        self, point: PatchPoint, before: Callable[[], None] | None, after: Callable[[], None] | None
    ) -> None:
        def call(original: Any, *args: Any, **kwargs: Any) -> Any:
            if before is not None:
                before()
            try:
                return original(*args, **kwargs)
            finally:
                if after is not None:
                    after()

        if hasattr(point.owner, point.name):
            self._patches.wrap(*point, call)

    def _pause(self) -> None:
        if self._times is not None and self._is_ours and self._times.pause():
            self._say("GPU times while PyTorch's profiler ran: CUPTI serves one tool at a time")

    def _resume(self) -> None:
        if self._times is not None and self._is_ours:
            try:
                self._times.resume()
            except CuptiUnavailable as error:
                self._say(f"GPU times after PyTorch's profiler ran: {error}")


class EventTimes:
    """Some replays between two CUDA events each; nobody waits for them."""

    def __init__(self, journal: JournalWriter, patches: Patches) -> None:
        """Time replays from now on."""
        self._journal = journal
        self._pending: deque[tuple[int, Any, Any]] = deque()
        self._spent: dict[int, tuple[int, int]] = {}
        self._counts: dict[int, int] = defaultdict(int)
        self._numbers: dict[int, int] = {}
        """The capture of a graph, by its ``id``."""
        patches.wrap(torch.cuda.CUDAGraph, "replay", self._replay)

    def follow(self, graph: Any, number: int) -> None:
        self._numbers[id(graph)] = number

    def pause(self) -> bool:
        """Events and a profiler do not clash."""
        return False

    def resume(self) -> None:
        pass

    def finish(self) -> None:
        self._collect()

    def dropped(self) -> int:
        return 0

    def _replay(self, original: Any, graph: Any) -> None:
        number = self._numbers.get(id(graph))
        if number is None:
            original(graph)
            return
        count = self._counts[number]
        self._counts[number] = count + 1
        if (
            count % EVERY
            or len(self._pending) >= _PENDING
            or torch.cuda.is_current_stream_capturing()
        ):
            original(graph)
            return
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with relaxed():
            begin.record()
        original(graph)
        with relaxed():
            end.record()
        self._pending.append((number, begin, end))
        self._collect()

    def _collect(self) -> None:
        with relaxed():
            while self._pending and self._pending[0][2].query():
                number, begin, end = self._pending.popleft()
                count, spent_ns = self._spent.get(number, (0, 0))
                self._spent[number] = count + 1, spent_ns + round(begin.elapsed_time(end) * 1e6)
                self._journal.replay_time(number, *self._spent[number])
