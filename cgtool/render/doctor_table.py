"""The screen of ``cgtool doctor``."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType

from cgtool.model.finding import Capability
from cgtool.render.table import BAD, GOOD, WARNING, Column, Table

_STYLES = {"available": GOOD, "degraded": WARNING, "absent": BAD}


def render(capabilities: Sequence[Capability]) -> RenderableType:
    """One row a feature."""
    return Table("This machine", COLUMNS, capabilities)


COLUMNS: Sequence[Column[Capability]] = (
    Column("feature", lambda row: row.name, narrowest=20),
    Column(
        "state", lambda row: row.state, wrap="never", style=lambda row: _STYLES.get(row.state, "")
    ),
    Column("how", lambda row: row.how, narrowest=24),
    Column("how to get it", lambda row: row.remedy or "", narrowest=20),
)
