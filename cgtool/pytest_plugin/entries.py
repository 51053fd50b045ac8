"""What a test captures, as text: a worker process finds it by that, and a baseline names it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from cgtool.model.failure import CgtoolError, usage
from cgtool.model.files import is_file
from cgtool.program.spec import parse_entry


class Named(NamedTuple):
    """One entry point."""

    spec: str
    """For the worker: files by their full path."""
    name: str
    """For messages and baselines: files from pytest's root, the same on every machine."""


def root_of(config: pytest.Config) -> Path:
    """What files are named from: pytest's root where a configuration file says which that is;
    else its root depends on the arguments, and the folder that it was started in does not."""
    return config.rootpath if config.inipath is not None else config.invocation_params.dir


def named(entry: object, root: Path, folder: Path) -> Named:
    """``"model.py:build"`` (a file from ``root``, or else from ``folder``, where the test is),
    ``"package.module:build"``, or a function that a module has under its own name.

    Raises CgtoolError (exit 2) for what a worker process could not find.
    """
    if isinstance(entry, str):
        return _of_text(entry, root, folder)
    return _of_object(entry, root)


def _of_text(text: str, root: Path, folder: Path) -> Named:
    file, _, name = text.rpartition(":")
    if not file.endswith(".py"):
        parse_entry(text)
        return Named(text, text)
    for base in (root, folder):
        if is_file(path := base / file):
            return _in_file(path, name, root)
    raise usage(
        f"{text}: no such file",
        why=f"looked in {root}" + (f" and in {folder}" if folder != root else ""),
        fix="name it from pytest's root, or from the folder of the test",
    )


def _in_file(path: Path, name: str, root: Path) -> Named:
    # Not resolved: users know the file by its link in the repository.
    full = os.path.normpath(path)
    shown = os.path.relpath(full, root) if Path(full).is_relative_to(root) else full
    entry = Named(f"{full}:{name}", f"{Path(shown).as_posix()}:{name}")
    parse_entry(entry.spec)
    return entry


def _of_object(entry: object, root: Path) -> Named:
    name = getattr(entry, "__qualname__", None)
    if not callable(entry) or not isinstance(name, str):
        raise _unnamed(f"an object of type {type(entry).__name__}", "no name leads to it")
    if "<lambda>" in name:
        raise _unnamed("a lambda", "no name leads to it")
    if "<locals>" in name:
        inner = name.rpartition(".")[2]
        raise _unnamed(
            f"{inner}, which is defined inside a function",
            "what it closes over is in this process alone",
        )
    module = sys.modules.get(getattr(entry, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py"):
        raise _unnamed(f"{name}, which no Python file defines", "a worker process imports a file")
    value: object = module
    for piece in name.split("."):
        value = getattr(value, piece, None)
    if value is not entry:
        raise _unnamed(
            f"{name}, which is not what {file} has under that name", "it would find something else"
        )
    if not Path(file).is_relative_to(root):
        # Installed: in another folder on each machine.
        return Named(f"{entry.__module__}:{name}", f"{entry.__module__}:{name}")
    return _in_file(Path(file), name, root)


def _unnamed(what: str, why: str) -> CgtoolError:
    return usage(
        f"cudagraph() was given {what}",
        why=f"the capture runs in a process of its own, which imports it by name, and {why}",
        fix='give a function at the top level of a module, or text: "model.py:build"',
    )
