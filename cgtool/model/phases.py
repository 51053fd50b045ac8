"""The phases of an iteration, and which of them is all of it."""

from __future__ import annotations

from collections.abc import Container

PHASES = ("forward", "backward", "both", "step")
"""In the order of tables. ``both`` is no graph: it is forward and backward timed in one."""


def whole(phases: Container[str]) -> str:
    """The phase that is the whole iteration, of the phases that were captured or timed: ``step``,
    ``both`` where there is a backward, else ``forward``."""
    if "step" in phases:
        return "step"
    return "both" if "both" in phases or "backward" in phases else "forward"
