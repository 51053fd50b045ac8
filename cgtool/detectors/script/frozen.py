"""One thing on the host that a capture has read."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

from cgtool.model.capture import Frames
from cgtool.model.finding import Code
from cgtool.observe.host_values import texts_of
from cgtool.observe.script.changes import Target
from cgtool.observe.script.names import Stack
from cgtool.observe.uses import Use


class Frozen(NamedTuple):
    """Something on the host that a capture has read, and how to read it again."""

    code: Code
    reason: str
    before: Hashable
    """At the capture."""
    read: Callable[[Stack], Hashable]
    """What it is now; ``MISSING`` where it is gone."""
    read_at: Frames
    """The line that read it; if there is none, a change is reported only if the line that made it
    is found."""
    name: str = ""
    """Its name in the evidence; empty if its values would say nothing to the user."""
    targets: tuple[Target, ...] = ()
    """What a line must assign or call to have changed it."""
    local_to: int | None = None
    """Identity of the frame whose local variable it is."""
    changed_at: Callable[[], Frames] = tuple
    """The line that changed it, if that was seen."""
    severity: str | None = None
    chooses_graph: bool = True
    """Whether several graphs that were captured at one line may each be for another value of it."""
    may_end_with_block: bool = False
    """True if a change at the end of a ``with`` statement around the capture is not reported, as
    long as the graph was not replayed before: the value was meant for the capture alone."""
    used_at: Frames = ()
    """The captured line that uses it, where it is to be changed at another line."""
    subject: Hashable = None
    """Whose value it is, if a graph that was captured with another value of it, wherever, is meant
    for that value."""
    tensors: frozenset[int] = frozenset()
    """The keys of the storages of the module that it was."""
    fix: str | None = None
    """If it is more specific than that of the code."""
    owner: int | None = None
    """Identity of the object, or of the names of a function or module, that it is reached from."""

    @property
    def identity(self) -> Hashable:
        """Equal for the same thing in captures at the same line."""
        return self.code, self.reason, self.read_at[:1], self.targets, self.owner

    def evidence(self, now: Hashable) -> tuple[str, ...]:
        """What it was and what it is."""
        if not self.name:
            return ()
        before, after = texts_of(self.before, now)
        return (f"{self.name} was {before} when captured, and is {after} now",)


def bound_by(use: Use, local_to: int | None) -> tuple[tuple[Target, ...], int | None]:
    """What a line must assign to have changed a name, and the frame whose local variable it is."""
    path: tuple[Target, ...] = (("name", use.root), *use.steps)
    return path[::-1], None if use.steps else local_to
