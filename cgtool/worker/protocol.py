"""What travels between a worker process and the process that started it.

To the worker: a Request on standard input, with the folders in which to find modules. Pytest, a
``conftest.py`` or a program puts folders on ``sys.path`` that no environment variable names, and
the worker must import what its parent can. From the worker: messages, as JSON lines on a pipe.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import msgspec

from cgtool.model.capture import Frame
from cgtool.model.failure import Failure

AHEAD = "ahead"
"""Last argument of a worker that imports torch before it reads its request."""
READY = "ready"
"""The phase of such a worker while it waits."""
CHANNEL_LOST = 97
"""Exit code of a worker whose pipe was closed by the user's code."""


class Ending(msgspec.Struct, frozen=True, omit_defaults=True):
    """The user's code is about to end the process itself. It counts only if it does."""

    status: int
    """As ``subprocess.Popen.returncode``: an exit code, or the negative number of a signal."""
    what: str
    """``called os._exit(3)``."""
    frames: tuple[Frame, ...] = ()


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line. One of ``failure``, ``bug`` and ``done`` is the last."""

    phase: str | None = None
    """What the worker does now."""
    ending: Ending | None = None
    failure: Failure | None = None
    done: bool = False
    bug: str | None = None
    """A traceback of cgtool's own."""


def encode(message: msgspec.Struct) -> bytes:
    """The message as one line. Lone surrogates, which JSON cannot hold, become question marks."""
    try:
        return msgspec.json.encode(message) + b"\n"
    except UnicodeEncodeError:
        text = json.dumps(msgspec.to_builtins(message), ensure_ascii=False)
        return text.encode(errors="replace") + b"\n"


_MUST_BE_REAL = sys.stdlib_module_names - {"test"} | {"torch", "numpy"}
"""Modules that the user's files must not replace in a worker. Nobody imports ``test``."""


def import_path() -> tuple[str, ...]:
    """``sys.path`` of this process as absolute paths, without the folder of console scripts, which
    Python puts first. A path that is not UTF-8 cannot be sent and is left out."""
    scripts = sysconfig.get_path("scripts")
    folders = [
        os.path.abspath(folder)  # noqa: PTH100 : links stay links
        for folder in sys.path
        if isinstance(folder, str) and _is_utf8(folder)
    ]
    return tuple(dict.fromkeys(folder for folder in folders if folder != scripts))


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def extend_import_path(folders: Sequence[str]) -> None:
    """Search these folders too, before the installed packages, as the parent process does. A
    folder with a ``random.py`` is searched last, after Python's own modules."""
    new = [folder for folder in folders if folder not in sys.path]
    last = [folder for folder in new if _module_names(folder) & _MUST_BE_REAL]
    sys.path[:0] = [folder for folder in new if folder not in last]
    sys.path += last


def _module_names(folder: str) -> set[str]:
    """Modules and packages at the top of a folder."""
    path, names = Path(folder), set()
    with contextlib.suppress(OSError):
        names |= {file.name.partition(".")[0] for file in path.glob("*.py")}
        names |= {file.parent.name for file in path.glob("*/__init__.py")}
    return names
