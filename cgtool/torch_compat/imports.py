"""Calls back when the program has imported a module. Imports nothing: most of the processes that a
command starts never import PyTorch."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from types import ModuleType
    from typing import Any


def after_import(
    name: str,
    callback: Callable[[ModuleType], None],
    around: Callable[[], AbstractContextManager[None]] | None = None,
) -> Callable[[], None]:
    """Call ``callback(module)`` once the module is imported; at once if it is already. It runs
    inside ``around()``. Returns a function that ends the waiting."""
    finder = _Finder(name, callback, around)
    module = sys.modules.get(name)
    if module is not None:
        callback(module)
    else:
        sys.meta_path.insert(0, finder)
    return finder.stop


class _Finder:
    """Finds one module as Python would, until it is imported: to look for it is not to import."""

    def __init__(
        self,
        name: str,
        callback: Callable[[ModuleType], None],
        around: Callable[[], AbstractContextManager[None]] | None,
    ) -> None:
        self._name = name
        self._callback = callback
        self.around = around

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        if name != self._name or self not in sys.meta_path:
            return None
        # The finders before this one were asked; another may wait for the same module.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self)
                return spec
        return None

    def imported(self, module: ModuleType) -> None:
        if self in sys.meta_path:
            self.stop()
            self._callback(module)

    def stop(self) -> None:
        if sys.meta_path and self in sys.meta_path:  # None when Python ends
            sys.meta_path.remove(self)


class _Loader:
    """Loads the module as its own loader does, and gives way to that one."""

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
        around = self._finder.around
        if around is None:
            self._loader.exec_module(module)
        else:
            with around():
                self._loader.exec_module(module)
        self._finder.imported(module)
