"""Runs are added until times are decided: ``bench --baseline`` and ``gate`` share this.

A run is one worker process with its first capture, which is what counts as evidence
(``cgtool.analysis.timing.regression``). The looks are scheduled before anything is measured, so
that the runs cannot choose when they are judged.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from cgtool.analysis.timing.regression import schedule
from cgtool.analysis.units import count_text
from cgtool.model.capture import Capture
from cgtool.model.options import FIRST_RUNS

T = TypeVar("T")


@dataclass
class Runs:
    """The runs of one entry, and how long more of them may be added."""

    run: Callable[[], Capture]
    """One more worker process. Raises CgtoolError."""
    max_seconds: float
    """Of all runs together, without the start of their workers: no run begins after that."""
    ahead: Callable[[int], AbstractContextManager[int]] = nullcontext
    """Given how many more runs there will be: prepares some of them, and returns how many."""
    captures: list[Capture] = field(default_factory=list)
    _seconds: float = 0.0

    def run_once(self) -> Capture:
        """Add one run, even if the time is over."""
        start = time.monotonic()
        self.captures.append(self.run())
        self._seconds += time.monotonic() - start
        return self.captures[-1]

    def up_to(self, count: int) -> bool:
        """Add runs until there are ``count``; returns whether there was time for all."""
        while (missing := count - len(self.captures)) > 0:
            with self.ahead(missing) as prepared:
                for _ in range(prepared):
                    if self._seconds >= self.max_seconds:
                        return False
                    self.run_once()
        return True

    @property
    def counted(self) -> str:
        """``3 runs``."""
        return count_text(len(self.captures), "run")

    @property
    def out_of_time(self) -> str:
        """The note of a report whose runs were cut short."""
        return f"{self.max_seconds:g} s were over after {self.counted}: --max-seconds allows more"


@dataclass(frozen=True)
class Look(Generic[T]):
    """The result of the runs so far."""

    result: T
    open: bool
    """True if more runs may decide what these do not."""
    compared: bool
    """Times are compared with a baseline: it takes more than one run to tell them from it."""


def until_decided(
    runs: Runs, look: Callable[[int], Look[T]], *, first: int | None = None, most: int
) -> tuple[T, str | None]:
    """Add runs while something is open; the last result, and why no more runs were added where
    something is open still.

    ``look`` is given the number of looks that the level is shared between. With a baseline the
    first look is at ``first`` runs, ``FIRST_RUNS`` by default and no more than ``most``; without
    one, at the runs that there are.
    """
    before = len(runs.captures)
    looks = schedule(before, max(before, most))
    now = look(len(looks))
    if now.compared:
        first = max(before, first or min(FIRST_RUNS, most))
        looks = schedule(first, max(first, most))
    elif not now.open:
        return now.result, None
    in_time = True
    for count in looks:
        in_time = runs.up_to(count)
        now = look(len(looks))
        if not (now.open and in_time):
            break
    if not now.open:
        return now.result, None
    if in_time:
        return now.result, f"undecided after {runs.counted}, and --max-runs allows no more"
    return now.result, runs.out_of_time
