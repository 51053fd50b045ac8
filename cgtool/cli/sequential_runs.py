"""Measuring on until it is told: what ``bench --baseline`` and ``gate`` do with their runs.

A run is one worker process with its first capture, which is what counts as evidence
(``cgtool.analysis.timing.regression``). When to look is set before anything is measured, so that
the runs cannot choose when they are judged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from cgtool.analysis.timing.regression import schedule
from cgtool.model.capture import Capture
from cgtool.model.options import FIRST_RUNS

T = TypeVar("T")


@dataclass
class Runs:
    """The runs of one entry, and how long there may be more of them."""

    run: Callable[[], Capture]
    """One more worker process. Raises CgtoolError."""
    max_seconds: float
    """Of all runs together, once their workers stand: begin none after that."""
    ahead: Callable[[int], AbstractContextManager[int]] = nullcontext
    """Given how many more there will be: makes ready for some of them, and says for how many."""
    captures: list[Capture] = field(default_factory=list)
    _seconds: float = 0.0

    def one(self) -> Capture:
        """One more, whatever the time."""
        began = time.monotonic()
        self.captures.append(self.run())
        self._seconds += time.monotonic() - began
        return self.captures[-1]

    def up_to(self, count: int) -> bool:
        """More until there are so many; whether there was time for all."""
        for _ in self._made_ready(count - len(self.captures)):
            if self._seconds >= self.max_seconds:
                return False
            self.one()
        return True

    @property
    def counted(self) -> str:
        made = len(self.captures)
        return f"{made} run{'s' * (made > 1)}"

    @property
    def out_of_time(self) -> str:
        return f"{self.max_seconds:g} s were over after {self.counted}: --max-seconds allows more"

    def _made_ready(self, count: int) -> Iterator[None]:
        """Once for each run, which is then to be made."""
        while count > 0:
            with self.ahead(count) as some:
                for _ in range(some):
                    yield
            count -= some


@dataclass(frozen=True)
class Look(Generic[T]):
    """What the runs say by now."""

    found: T
    open: bool
    """More runs may tell what these do not."""
    compared: bool
    """Times are held against a baseline: it takes more than one run to tell them from it."""


def until_told(
    runs: Runs, look: Callable[[int], Look[T]], *, first: int | None = None, most: int
) -> tuple[T, str | None]:
    """Add runs to the first while something is open; what was found at last, and why it was not
    measured on where something is open still.

    ``look`` is given the number of looks that the level is shared between. With a baseline the
    first is at ``first`` runs, ``FIRST_RUNS`` by default and no more than ``most``; where there is
    none to compare with, at the runs that are there.
    """
    had = len(runs.captures)
    looks = schedule(had, max(had, most))
    now = look(len(looks))
    if now.compared:
        first = max(had, first or min(FIRST_RUNS, most))
        looks = schedule(first, max(first, most))
    elif not now.open:
        return now.found, None
    in_time = True
    for count in looks:
        in_time = runs.up_to(count)
        now = look(len(looks))
        if not (now.open and in_time):
            break
    if not now.open:
        return now.found, None
    if in_time:
        return now.found, f"not told by {runs.counted}, and --max-runs allows no more"
    return now.found, runs.out_of_time
