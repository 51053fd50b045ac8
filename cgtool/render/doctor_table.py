"""The screen of ``cgtool doctor``."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType

from cgtool.model.finding import Capability
from cgtool.render.table import BAD, GOOD, WARNING, add, plain, table

_STYLE = {"available": GOOD, "degraded": WARNING, "absent": BAD}


def render(found: Sequence[Capability]) -> RenderableType:
    """One row a feature."""
    made = table("This machine", "feature", ("state", "left"), "how", "what would bring it")
    for one in found:
        add(
            made,
            one.name,
            plain(one.state, _STYLE.get(one.state, "")),
            one.how,
            one.remedy or "",
        )
    return made
