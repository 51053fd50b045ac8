"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cgtool.model.failure import CgtoolError, usage


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path`` that takes its place when the block ends well.

    Raises CgtoolError (exit 2) when the place cannot be written; the temporary file is gone then,
    and also after any other exception.
    """
    try:
        # Through a symbolic link: the link stays and what it names is replaced.
        path = Path(os.path.realpath(path))
        if path.is_dir():
            raise _unwritable(path, "it is a directory")
        if path.exists() and not path.is_file():
            raise _unwritable(path, "it is a device or a pipe, not a file")
        handle, name = tempfile.mkstemp(prefix=".cgtool-", suffix=".tmp", dir=path.parent)
        os.close(handle)
    except (OSError, ValueError) as error:
        raise _unwritable(path, _reason(error)) from error
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise _unwritable(path, _reason(error)) from error
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)


def _unwritable(path: Path, reason: str) -> CgtoolError:
    return usage(
        f"cannot write {path}: {reason}",
        fix="choose another place, or make room there",
    )
