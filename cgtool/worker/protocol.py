"""What a worker process tells the process that started it: JSON lines on a pipe of its own."""

from __future__ import annotations

import json

import msgspec

from cgtool.model.capture import Frame
from cgtool.model.failure import Failure

AHEAD = "ahead"
"""Last argument of a worker that imports torch before it reads its request."""
READY = "ready"
"""The phase of such a worker while it waits."""
CHANNEL_LOST = 97
"""Exit code of a worker whose way back was closed under it."""


class Ending(msgspec.Struct, frozen=True, omit_defaults=True):
    """The user's code is about to end the process itself. It counts only if it does."""

    status: int
    """As ``subprocess.Popen.returncode`` has it: an exit code, or a signal's number, negative."""
    what: str
    """``called os._exit(3)``."""
    frames: tuple[Frame, ...] = ()


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line. Exactly one of ``failure``, ``bug`` and ``done`` ends the conversation."""

    phase: str | None = None
    """What the worker is doing now."""
    ending: Ending | None = None
    failure: Failure | None = None
    done: bool = False
    bug: str | None = None
    """A traceback of cgtool's own, when the fault is not the user's."""


def encode(message: msgspec.Struct) -> bytes:
    """The message as one line. Lone surrogates, which JSON has not, become question marks."""
    try:
        return msgspec.json.encode(message) + b"\n"
    except UnicodeEncodeError:
        text = json.dumps(msgspec.to_builtins(message), ensure_ascii=False)
        return text.encode(errors="replace") + b"\n"
