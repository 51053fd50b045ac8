"""What a machine can do, feature by feature."""

from __future__ import annotations

import msgspec


class Capability(msgspec.Struct, frozen=True, omit_defaults=True):
    """One feature. ``state`` is ``available``, ``degraded`` or ``absent``."""

    name: str
    state: str
    how: str
    """What was found, or how cgtool does without."""
    remedy: str | None = None
    """What would bring it."""
    gpu: bool = False
    """It needs a GPU to matter."""
