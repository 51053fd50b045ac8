"""The screen of ``cgtool doctor``."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType

from cgtool.model.capability import Capability
from cgtool.render.table import add, plain, table

_STYLE = {"available": "green", "degraded": "yellow", "absent": "red"}


def render(found: Sequence[Capability]) -> RenderableType:
    """One row a feature."""
    made = table("This machine", "feature", "state", "how", "what would bring it")
    for one in found:
        add(
            made,
            one.name,
            plain(one.state, _STYLE.get(one.state, "")),
            one.how,
            one.remedy or "",
        )
    return made
