"""Begins to record a process when it imports PyTorch.

The program may have modules of its own that are named like ours, so it must not see this one:
``site`` loads it and takes it out of ``sys.modules``. If names clash when PyTorch is imported, the
process is not recorded.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys

from cgtool.model import clock
from cgtool.model.collector import CollectorPaused
from cgtool.model.program import Settings
from cgtool.torch_compat.imports import after_import

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

NEEDED = ("msgspec",)
"""Packages that the recorder needs, besides PyTorch and its own."""


def begin(text: str) -> None:
    """Record this process from the moment on that it imports PyTorch. ``text``: ``Settings``."""
    settings = Settings(*text.split("\n"))

    def imported(torch: ModuleType) -> None:
        with CollectorPaused():
            try:
                _record(settings, torch)
            except Exception as error:  # the program goes on, unrecorded
                not_recorded(settings.folder, error)

    after_import("torch", imported)


def not_recorded(folder: str, error: Exception) -> None:
    """Leave the reason why this process is not recorded."""
    name = os.path.join(folder, f"{os.getpid()}-{clock.time_ns()}.lost")  # noqa: PTH118
    reason = str(error) if type(error) is ImportError else f"{type(error).__name__}: {error}"
    command = " ".join(sys.orig_argv[:4])
    try:
        # Python represents bytes that are not UTF-8 with characters that UTF-8 has not.
        with open(name, "w", encoding="utf-8", errors="backslashreplace") as file:  # noqa: PTH123
            file.write(f"process {os.getpid()} ({command}) is not recorded: {reason}")
    except OSError:
        pass


def _record(settings: Settings, torch: ModuleType) -> None:
    if not hasattr(torch, "_C"):
        raise ImportError(f"its torch is not PyTorch: {torch.__file__}")
    own = os.path.join(settings.home, "cgtool", "__init__.py")  # noqa: PTH118
    found = _file_of("cgtool")
    if found is not None and os.path.realpath(found) != os.path.realpath(own):
        raise ImportError(f"the program has its own module cgtool: {found}")
    for name in NEEDED:
        found = _file_of(name)
        if found is not None and not found.endswith("__init__.py"):
            raise ImportError(f"the program has its own module {name}: {found}")
    path = None if _file_of("cgtool") else settings.home
    if path is not None:
        # cgtool is not installed for this Python: at the end, where it shadows nothing.
        sys.path.append(path)
    try:
        from cgtool.recorder.process import record

        record(settings)
    finally:
        if path in sys.path:
            sys.path.remove(path)


def _file_of(name: str) -> str | None:
    """The file that ``import name`` would run; None if there is none."""
    module = sys.modules.get(name)
    if module is not None:
        return getattr(module, "__file__", None)
    spec = importlib.machinery.PathFinder.find_spec(name)
    return None if spec is None else spec.origin
