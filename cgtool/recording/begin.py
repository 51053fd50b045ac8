"""Waits until the program imports PyTorch. Imports nothing else before that: most of the Python
processes that a command starts never do."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from cgtool.model.program import Settings


def begin(text: str) -> None:
    """Record this process from the moment on that it imports PyTorch."""
    sys.meta_path.insert(0, _Finder(Settings(*text.split("\n"))))


class _Finder:
    """Finds PyTorch as Python would, until it is imported."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self)
                return spec
        return None

    def imported(self) -> None:
        """Begin to record; whatever goes wrong, the program goes on."""
        sys.meta_path.remove(self)
        folder = Path(self._settings.folder)
        try:
            from cgtool.recording.process import record

            record(folder, self._settings.device)
        except Exception as error:
            reason = f"{sys.executable}: {type(error).__name__}: {error}"
            with contextlib.suppress(OSError):
                (folder / f"{os.getpid()}-{time.time_ns()}.lost").write_text(reason)


class _Loader:
    """Loads PyTorch, and then begins to record."""

    def __init__(self, loader: Any, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._finder.imported()
