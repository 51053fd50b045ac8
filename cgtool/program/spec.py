"""ENTRY, the text that the user types: ``path/to/file.py:name`` or ``package.module:name``."""

from __future__ import annotations

import ast
import difflib
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from cgtool.model import files
from cgtool.model.failure import CgtoolError, usage

FORMS = "ENTRY is path/to/file.py:name or package.module:name"


class EntrySpec(msgspec.Struct, frozen=True):
    """The two halves of an ENTRY; ``is_file``: ``target`` is a path, not a module's dotted name."""

    target: str
    name: str
    is_file: bool

    @property
    def text(self) -> str:
        return f"{self.target}:{self.name}"


def _dotted(text: str) -> bool:
    return all(piece.isidentifier() for piece in text.split("."))


def _top_level_names(path: Path) -> list[str]:
    """The functions and classes of a file, parsed and not run: for a hint."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    names = [
        node.name
        for node in body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]
    return sorted(names, key=lambda name: name != "build")


def parse(text: str) -> EntrySpec:
    """Split an ENTRY. Nothing is imported.

    Raises CgtoolError (exit 2) when it is not an ENTRY, or the file does not exist.
    """
    if text.endswith(".cgt") or text.rpartition(":")[0].endswith(".cgt"):
        raise usage(f"{text} is a capture file, not an ENTRY", fix=FORMS)
    target, colon, name = text.rpartition(":")
    if not colon or not target or not name:
        raise _no_name(text.removesuffix(":"))
    if not _dotted(name):
        raise usage(f"{text}: {name!r} is not a Python name", fix=FORMS)
    is_file = os.sep in target or not _dotted(target) or target.endswith(".py")
    is_file = is_file or files.is_file(Path(target))
    if is_file:
        _check_file(target, name)
    elif files.is_dir(Path(target)) and not (Path(target) / "__init__.py").exists():
        raise _folder(target, name)
    return EntrySpec(target, name, is_file)


def _no_name(target: str) -> CgtoolError:
    if not target or target.startswith(":"):
        return usage(f"{target or ':'}: no file or module before the colon", fix=FORMS)
    names = _top_level_names(Path(target)) if os.path.isfile(target) else []  # noqa: PTH113
    shown = [f"{target}:{name}" for name in names[:5]] or [f"{target}:build"]
    return usage(
        f"{target}: an ENTRY also names a function or a module in it",
        why=FORMS,
        fix=f"write {' or '.join(shown)}",
    )


def _folder(target: str, name: str) -> CgtoolError:
    files = sorted(file.name for file in Path(target).glob("*.py"))
    near = [f"{Path(target) / file}:{name}" for file in files[:5]]
    return usage(
        f"{target} is a folder, not a Python file",
        fix=f"write {' or '.join(near)}" if near else FORMS,
    )


def _check_file(target: str, name: str) -> None:
    # os.path answers False where pathlib raises: a name too long, a NUL, no permission.
    if os.path.isdir(target):  # noqa: PTH112
        raise _folder(target, name)
    if not os.path.exists(target):  # noqa: PTH110
        near: Iterable[str] = ()
        parent = Path(target).parent
        if os.path.isdir(parent):  # noqa: PTH112
            files = [file.name for file in parent.glob("*.py")]
            near = difflib.get_close_matches(Path(target).name, files, 3)
        hints = [f"{parent / file}:{name}" for file in near]
        raise usage(
            f"{target}: no such file",
            fix=f"did you mean {' or '.join(hints)}?" if hints else FORMS,
        )
    suffix = Path(target).suffix
    if suffix not in (".py", ""):
        fix = "export it first: jupyter nbconvert --to script" if suffix == ".ipynb" else FORMS
        raise usage(f"{target} is not a Python file", fix=fix)
    if not os.access(target, os.R_OK):
        raise usage(f"{target}: no permission to read it")
