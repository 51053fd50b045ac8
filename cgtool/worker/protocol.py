"""What a worker process tells the process that started it: JSON lines on a pipe of its own."""

from __future__ import annotations

import msgspec

from cgtool.model.failure import Failure

CHANNEL_LOST = 97
"""Exit code of a worker whose way back was closed under it."""


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line. Exactly one of ``failure`` and ``done`` ends the conversation."""

    phase: str | None = None
    """What the worker is doing now."""
    failure: Failure | None = None
    done: bool = False
    bug: str | None = None
    """A traceback of cgtool's own, when the fault is not the user's."""
