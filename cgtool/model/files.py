"""Reading and writing files: written whole or not at all; no file that is read is trusted."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from cgtool.model.failure import CgtoolError, usage

MAX_BYTES = 64 << 20
"""The limit of one JSON file: ten thousand findings take a tenth of it."""

T = TypeVar("T")


def path_of(path: object, expected: str) -> Path:
    """Raises TypeError, which says what was ``expected``, for what is no path."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{expected}, not {type(path).__name__}")
    return Path(path)


# For a name that is too long, and for one in a folder that may not be entered, the methods of
# `Path` raise (before Python 3.14). These answer False: whoever opens the file then says why.


def is_file(path: Path) -> bool:
    """Whether it is a file."""
    return os.path.isfile(path)  # noqa: PTH113


def is_dir(path: Path) -> bool:
    """Whether it is a folder."""
    return os.path.isdir(path)  # noqa: PTH112


def is_special(path: Path) -> bool:
    """Whether it is a device or a pipe (``/dev/stdout``), which nothing can replace."""
    return os.path.exists(path) and not is_file(path) and not is_dir(path)  # noqa: PTH110


def version_of(path: Path) -> tuple[int, int] | None:
    """Changes when a file is written; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def free_name(path: Path) -> Path:
    """``run-2.cgt`` or the next that is free, for a ``run.cgt`` that is taken."""
    names = (path.with_stem(f"{path.stem}-{number}") for number in itertools.count(2))
    return next(name for name in names if not name.exists())


def check_replaceable(path: Path) -> None:
    """Raises CgtoolError (exit 2) for a directory, a device, a pipe, or no possible name."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise unwritable(path, _reason(error)) from error
    if stat.S_ISDIR(mode):
        raise unwritable(path, "it is a directory")
    if not stat.S_ISREG(mode):
        raise unwritable(path, "it is a device or a pipe, not a file")


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary file next to ``path`` that replaces it when the block ends without an exception.

    Raises CgtoolError (exit 2) when the file cannot be written. The temporary file is removed
    then, and after any other exception.
    """
    try:
        check_replaceable(path)
        # Through a symbolic link: the link stays, its target is replaced.
        path = Path(os.path.realpath(path))
        handle, name = tempfile.mkstemp(prefix=".cgtool-", suffix=".tmp", dir=path.parent)
        os.close(handle)
    except (OSError, ValueError) as error:
        raise unwritable(path, _reason(error)) from error
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        mask = os.umask(0o077)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
    except OSError as error:
        raise unwritable(path, _reason(error)) from error
    finally:
        temporary.unlink(missing_ok=True)


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)


def unwritable(path: Path, reason: str) -> CgtoolError:
    is_full = reason in map(os.strerror, (errno.ENOSPC, errno.EDQUOT))
    fix = f"choose another path{', or free some space' if is_full else ''}"
    return usage(f"cannot write {path}: {reason}", fix=fix)


@contextlib.contextmanager
def open_regular(path: Path, kind: str, fix: str | None = None) -> Iterator[IO[bytes]]:
    """An open regular file.

    ``kind`` names what the file should be (``a baseline``); ``fix`` says what to do when it does
    not exist. Raises CgtoolError (exit 2), also for what the operating system refuses in the block.
    """
    try:
        # Reading a pipe or a device would block, or never end.
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise usage(f"{path} is a directory, not {kind}")
        if not stat.S_ISREG(mode):
            raise usage(f"{path} is a device or a pipe, not {kind}")
        with path.open("rb") as file:
            yield file
    except FileNotFoundError as error:
        raise usage(f"{path}: no such file", fix=fix) from error
    except OSError as error:
        raise usage(f"cannot read {path}: {_reason(error)}") from error


def read_bytes(path: Path, kind: str, fix: str | None = None) -> bytes:
    """The content of a regular file of at most ``MAX_BYTES``; arguments as of ``open_regular``."""
    try:
        with open_regular(path, kind, fix) as file:
            data = file.read(MAX_BYTES + 1)
    except ValueError as error:
        # A name that no file can have.
        raise usage(f"cannot read {path}: {error}") from error
    if len(data) > MAX_BYTES:
        raise usage(f"{path}: larger than {MAX_BYTES >> 20} MiB: not {kind}")
    return data


class _SchemaHeader(msgspec.Struct, frozen=True):
    """The first keys of every JSON object that cgtool writes."""

    schema: str
    schema_version: int


@dataclass(frozen=True)
class JsonFormat:
    """A kind of JSON file, which names its schema."""

    name: str
    """``baseline``."""
    schemas: Mapping[str, int]
    """Name of a schema to the newest version that this cgtool reads."""
    create: str
    """How to create one: ``with `cgtool gate ...```."""

    def read(self, path: Path, type_: type[T]) -> tuple[str, T]:
        """The name of the file's schema, and its content.

        Raises CgtoolError (exit 2) for every file that is not of this format, and for one that a
        newer cgtool wrote.
        """
        data = read_bytes(path, f"a {self.name}", f"create it {self.create}")
        if not data.strip():
            raise self.bad(path, "it is empty")
        head = self._decode(path, data, _SchemaHeader)
        newest = self.schemas.get(head.schema)
        if newest is None:
            names = " or ".join(map(repr, self.schemas))
            raise self.bad(path, f"its schema is {head.schema[:80]!r}, not {names}")
        require_known_version(path, head.schema_version, newest)
        if head.schema_version < 1:
            raise self.bad(path, f"schema version {head.schema_version}")
        content = self._decode(path, data, type_)
        if (key := _repeated_key(data)) is not None:
            raise self.bad(path, f"the key {key[:80]!r} is repeated")
        return head.schema, content

    def bad(self, path: Path, problem: str) -> CgtoolError:
        """The file is not of this format: exit 2."""
        return usage(
            f"{path}: not a readable {self.name}: {problem}",
            fix=f"create it again {self.create}",
        )

    def _decode(self, path: Path, data: bytes, type_: type[T]) -> T:
        try:
            return msgspec.json.decode(data, type=type_)
        except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as error:
            raise self.bad(path, " ".join(str(error).split())[:300]) from error


def require_known_version(path: Path, version: int, newest: int) -> None:
    """Raises CgtoolError (exit 2) for a schema version that only a newer cgtool reads."""
    if version > newest:
        raise usage(
            f"{path} was written by a newer cgtool (schema {version}; this one reads up to "
            f"{newest})",
            fix="upgrade cgtool",
        )


def _repeated_key(data: bytes) -> str | None:
    """The first key that an object has twice, as a merge that kept both sides leaves it. Readers
    silently take the last one."""
    repeated: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        keys = [key for key, _ in pairs]
        if len(set(keys)) < len(keys):
            repeated.append(next(key for at, key in enumerate(keys) if key in keys[:at]))

    try:
        json.loads(data, object_pairs_hook=look)
    except (ValueError, RecursionError):
        return None
    return repeated[0] if repeated else None


def encode_json(value: Any) -> bytes:
    """JSON of a struct or of plain data."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(encodable(msgspec.to_builtins(value)))


def encodable(value: Any) -> Any:
    """Plain data that JSON can hold. Python represents a file name that is not UTF-8 with lone
    surrogates, which JSON does not allow; they become escapes."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {encodable(key): encodable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [encodable(inner) for inner in value]
    return value
