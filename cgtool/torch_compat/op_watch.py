"""The ops of a capture, noted in C++, and replays counted: ``op_watch.cpp``, compiled for the
installed PyTorch.

Most of what it costs to watch an op with ``op_key`` is its way into Python and back. The kernel in
C++ goes on the same key, so the same ops reach it. This file, run as a script, compiles it, for
``cgtool doctor --build``; with ``--once`` for ``cgtool run``, where it has to watch ops in Python.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

SOURCE = Path(__file__).with_suffix(".cpp")
_NAME = "cgtool_op_watch"
_PASSING = re.compile(r"[Kk]illed|No space left")
"""In an error of a compiler that may succeed another time."""


class BuildError(Exception):
    """The kernel cannot be compiled here."""


@functools.cache
def _digest() -> str:
    """A hash of this PyTorch, this Python and this source."""
    build = f"{torch.__version__} {torch.version.git_version} {sysconfig.get_config_var('SOABI')}"
    return hashlib.sha256(SOURCE.read_bytes() + build.encode()).hexdigest()[:16]


def library() -> Path:
    """Where the kernel is, or would be, for this PyTorch, this Python and this source."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "cgtool", f"op_watch-{torch.__version__}-{_digest()}.so")


class _Loader:
    """Loads the kernel's module once, as soon as it is there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._module: Any = None
        self._failed = False

    def load(self) -> Any:
        if self._module is None and not self._failed:
            with self._lock:
                if self._module is None and not self._failed:
                    self._load()
        return self._module

    def _load(self) -> None:
        try:
            path = library()
            if not path.is_file():
                return
            loader = importlib.machinery.ExtensionFileLoader(_NAME, str(path))
            spec = importlib.util.spec_from_file_location(_NAME, path, loader=loader)
            assert spec is not None
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
            self._module = module
        except (ImportError, OSError, RuntimeError):
            self._failed = True


_loader = _Loader()


def load() -> Any:
    """The kernel's module; None if it is not compiled yet, or this process cannot load it."""
    return _loader.load()


def build() -> Path:
    """Compile it, which takes half a minute. Raises BuildError, or OSError if the file cannot be
    written."""
    root = Path(torch.__file__).parent
    path = library()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        output = Path(folder, path.name)
        command = [
            *shlex.split(os.environ.get("CXX", "c++")),
            *("-std=c++20", "-O2", "-shared", "-fPIC", "-fvisibility=hidden"),
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            *(f"-I{root / 'include' / part}" for part in ("", "torch/csrc/api/include")),
            f"-I{sysconfig.get_path('include')}",
            str(SOURCE),
            *(f"-L{root / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10"),
            *("-o", str(output)),
        ]
        try:
            compiled = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise BuildError(
                f"there is no C++ compiler `{command[0]}` ({error.strerror}); install one, "
                "for example g++, or name one in the environment variable CXX"
            ) from error
        if compiled.returncode != 0:
            lines = compiled.stderr.splitlines() or ["it says nothing"]
            first = next((line for line in lines if "error" in line), lines[-1])
            raise BuildError(f"`{command[0]}` does not compile it: {first.strip()}")
        output.replace(path)
    path.with_suffix(".failed").unlink(missing_ok=True)
    return path


@contextlib.contextmanager
def _first_time(path: Path) -> Iterator[bool]:
    """Yields True if this process should compile the kernel: there is no library, no earlier
    failure, and no other process that compiles. Raises OSError where files cannot be locked."""
    with path.with_suffix(".failed").open("a") as failed:
        try:
            fcntl.flock(failed, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        try:
            yield not path.exists() and not failed.tell()
        except BuildError as error:
            if not _PASSING.search(str(error)):
                print(error, file=failed)
            raise


def build_once() -> None:
    """Compile it, unless that has failed before. Raises as ``build`` does."""
    path = library()
    path.parent.mkdir(parents=True, exist_ok=True)
    with _first_time(path) as is_first:
        if is_first:
            build()


def main() -> int:
    """Compile it, and print where it is; on failure, the reason."""
    try:
        if sys.argv[1:] == ["--once"]:
            build_once()
            return 0
        path = build()
        if load() is None:
            raise BuildError(f"{path} was compiled, but cannot be loaded")
    except (BuildError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
