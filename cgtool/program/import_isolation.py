"""Two entries in one process: each imports its own modules, or the job fails.

Python keeps one module per name. When both entries import ``layers``, each from its own folder,
the second would silently run the module of the first, and be timed with it.
"""

from __future__ import annotations

import builtins
import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from cgtool.model.failure import usage
from cgtool.observe.frames import call_user
from cgtool.program.load import import_root
from cgtool.program.spec import parse_entry
from cgtool.torch_compat.patches import Patches


class ImportIsolation:
    """Watches the imports of two entries that take turns."""

    def __init__(self, first: str, second: str) -> None:
        self._folders = {spec: import_root(parse_entry(spec)) for spec in (first, second)}
        self._current = first
        self._own: dict[tuple[Path, str], str | None] = {}
        self._checking = False

    def switch_to(self, spec: str) -> None:
        """From now on this entry's code runs, and its folder is searched first."""
        self._current = spec
        folder = str(self._folders[spec])
        if folder in sys.path and sys.path[0] != folder:
            sys.path.remove(folder)
            sys.path.insert(0, folder)

    @contextlib.contextmanager
    def checked(self) -> Iterator[None]:
        """While this is open, an import that finds the other entry's module raises CgtoolError
        (exit 2). Imports by ``importlib`` are not checked."""
        if len(set(self._folders.values())) == 1:
            yield
            return
        original = builtins.__import__

        def import_and_check(
            name: str,
            globals: Mapping[str, object] | None = None,
            locals: Mapping[str, object] | None = None,
            fromlist: Sequence[str] | None = (),
            level: int = 0,
        ) -> ModuleType:
            module = call_user(original, name, globals, locals, fromlist or (), level)
            # _check may import too (pathlib does, in Python 3.12).
            if level == 0 and globals is not None and not self._checking:
                self._checking = True
                try:
                    self._check(name.partition(".")[0], globals.get("__file__"))
                finally:
                    self._checking = False
            return module

        with Patches() as patches:
            patches.set(builtins, "__import__", import_and_check)
            yield

    def _check(self, name: str, importer: Any) -> None:
        folder = self._folders[self._current]
        if not isinstance(importer, str) or not Path(importer).resolve().is_relative_to(folder):
            return
        key = (folder, name)
        if key not in self._own:
            self._own[key] = _place(PathFinder.find_spec(name, [str(folder)]))
        own, loaded = self._own[key], _place(getattr(sys.modules.get(name), "__spec__", None))
        if own is not None and loaded is not None and own != loaded:
            raise usage(
                f"{' and '.join(self._folders)} cannot run in one process: each needs its own "
                f"module {name}",
                why=f"Python keeps one module per name: {self._current} means {own}, and {loaded} "
                "is loaded",
                fix="save a baseline of one with `cgtool bench --runs 10 --save FILE`, and give it "
                "to the other with --baseline FILE",
            )


def _place(spec: Any) -> str | None:
    """The file of a module, or the folder of a package without one."""
    if spec is None:
        return None
    places = [spec.origin, *(spec.submodule_search_locations or ())]
    for place in places:
        if isinstance(place, str) and Path(place).exists():
            return str(Path(place).resolve())
    return None
