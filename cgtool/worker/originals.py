"""What Python and PyTorch were before the user's code ran, and what it replaced in them.

User code may put anything in the place of ``torch.cuda`` or ``builtins.len``. cgtool then fails
where it is not at fault. So the names are remembered, put back before an answer is written, and
what was found replaced is named in it.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import linecache  # noqa: F401 - kept below, by name
import sys
import threading  # noqa: F401
import time  # noqa: F401
import traceback  # noqa: F401
from pathlib import Path
from types import BuiltinFunctionType, CodeType, MethodDescriptorType, ModuleType
from typing import Any, NamedTuple

from cgtool.model.capture import Frame
from cgtool.observe.frames import is_internal, is_internal_file

_MISSING = object()
_BUILTINS = vars(builtins)
_OURS = ("torch", "cgtool", "msgspec", *sys.stdlib_module_names)


class Replaced(NamedTuple):
    """One name that the user's code gave another value."""

    name: str
    """``torch.cuda``."""
    value: Any
    """What is there instead; ``_MISSING`` when it was deleted."""

    @property
    def is_broken(self) -> bool:
        """Nothing that could be called or read stands there."""
        return self.value is _MISSING or self.value is None


class Originals:
    """A copy of the names of modules and classes that everything relies on."""

    def __init__(self) -> None:
        self._kept: list[tuple[str, Any, dict[str, Any]]] = []
        self._modules: dict[str, ModuleType] = {}
        self._builtins = dict(_BUILTINS)
        self.keep("builtins", "os", "sys", "time", "threading", "traceback", "linecache")

    def keep(self, *names: str) -> None:
        """Remember what these modules, or classes in them, hold now, and what is imported."""
        for name in names:
            module, _, attribute = name.rpartition(".")
            owner = sys.modules.get(name) or vars(importlib.import_module(module))[attribute]
            self._kept.append((name, owner, dict(vars(owner))))
        self._modules = dict(sys.modules)

    def restore(self) -> list[Replaced]:
        """Put everything back, and say what was not itself."""
        current = dict(_BUILTINS)
        # Without a single builtin until they are themselves again.
        _BUILTINS.update(self._builtins)
        found = [
            Replaced(f"builtins.{name}", current.get(name, _MISSING))
            for name, value in self._builtins.items()
            if current.get(name, _MISSING) is not value
        ]
        modules = sys.modules
        for name, module in self._modules.items():
            if modules.get(name) is None and name.partition(".")[0] in _OURS:
                found.append(Replaced(f"sys.modules[{name!r}]", modules.get(name, _MISSING)))
                modules[name] = module
        for label, owner, names in self._kept:
            for name, value in names.items():
                new = vars(owner).get(name, _MISSING)
                if new is not value and (_matters(value) or _lost(label, value, new)):
                    setattr(owner, name, value)
                    found.append(Replaced(f"{label}.{name}", new))
            for name in set(vars(owner)) - set(names):
                # A method of the class's own now stands before the inherited one.
                if isinstance(owner, type) and hasattr(super(owner, owner), name):
                    found.append(Replaced(f"{label}.{name}", vars(owner)[name]))
                    delattr(owner, name)
        return [one for one in found if _is_users(one.value)]


def _matters(value: Any) -> bool:
    return callable(value) or isinstance(value, ModuleType | property)


def _lost(label: str, value: Any, new: Any) -> bool:
    # Of sys, much is None at times: ps1, last_value, the standard streams.
    return label != "sys" and value is not None and (new is None or new is _MISSING)


def _is_users(value: Any) -> bool:
    """True for what no library puts there itself while it is used."""
    if value is None or value is _MISSING:
        return True
    code = getattr(value, "__code__", None)
    if isinstance(code, CodeType):
        # PyTorch wraps some of its functions in code of typing_extensions.
        is_pytorchs = str(getattr(value, "__module__", "")).startswith("torch.")
        return not is_internal(code) and not (is_pytorchs and "-packages/" in code.co_filename)
    if isinstance(value, BuiltinFunctionType | MethodDescriptorType):
        # A function of C's, which no user writes: put back by who stood in for it.
        return False
    origin = getattr(value, "__module__", None) or type(value).__module__
    root = str(origin).partition(".")[0]
    return root == "builtins" or root not in _OURS


def described(replaced: list[Replaced]) -> str:
    """``torch.cuda, builtins.len and 3 more``."""
    shown = [one.name for one in replaced[:3]]
    more = len(replaced) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def frames_of(replaced: list[Replaced]) -> tuple[Frame, ...]:
    """Where the user's files assign these names, as far as they do so in plain sight; else where
    the functions that were put there are written."""
    wanted = {one.name.rpartition(".")[2] for one in replaced}
    found = [
        Frame(file, node.lineno, "<module>")
        for file in _user_files()
        for node in ast.walk(_tree(file))
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store | ast.Del)
        and node.attr in wanted
    ]
    if not found:
        codes = [getattr(one.value, "__code__", None) for one in replaced]
        found = [
            Frame(code.co_filename, code.co_firstlineno, code.co_qualname)
            for code in codes
            if isinstance(code, CodeType)
        ]
    return tuple(found[:3])


def _user_files() -> list[str]:
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return [
        file
        for file in files
        if isinstance(file, str)
        and file.endswith(".py")
        and "-packages/" not in file
        and not is_internal_file(file)
    ]


def _tree(file: str) -> ast.Module:
    try:
        return ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])
