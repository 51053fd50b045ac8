"""One thing on the host that a capture has read."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

from cgtool.model.capture import Frame
from cgtool.model.finding import Code
from cgtool.observe.script.changes import Target
from cgtool.observe.script.names import Stack


class Frozen(NamedTuple):
    """Something on the host that a capture has read, and how to read it again."""

    code: Code
    reason: str
    before: Hashable
    """At the capture."""
    read: Callable[[Stack], Hashable]
    """What it is now; ``MISSING`` where it is gone."""
    read_at: tuple[Frame, ...]
    """Without such a line it counts only if the line that changed it is found."""
    name: str = ""
    """As evidence shows it; empty where its values say nothing."""
    targets: tuple[Target, ...] = ()
    """What the line that changed it must change."""
    local_to: int | None = None
    """Identity of the frame whose local variable it is."""
    changed_at: Callable[[], tuple[Frame, ...]] = tuple
    """The line that changed it, if that was seen."""
    severity: str | None = None
    chooses_graph: bool = True
    """Of several graphs captured at one line, each may be for another value."""

    def evidence(self, now: Hashable) -> tuple[str, ...]:
        """What it was and what it is."""
        if not self.name:
            return ()
        return (f"{self.name} was {self.before} when captured, and is {now} now",)
