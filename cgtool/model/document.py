"""JSON files that name their schema, read as if an enemy had made them."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from cgtool.model.failure import CgtoolError, usage

MAX_BYTES = 64 << 20
"""Of one file: ten thousand findings take a tenth of it."""

T = TypeVar("T")


class _Head(msgspec.Struct, frozen=True):
    """What every JSON object of cgtool begins with."""

    schema: str
    schema_version: int


def content(path: Path, what: str, fix: str | None = None) -> bytes:
    """The bytes of a file that is no directory, no pipe and not too long.

    ``what`` says what the file should be: ``a baseline``; ``fix``, what to do where it is missing.
    Raises CgtoolError (exit 2).
    """
    try:
        # A pipe or a device would be waited for, or never end.
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise usage(f"{path} is a directory, not {what}")
        if not stat.S_ISREG(mode):
            raise usage(f"{path} is a device or a pipe, not {what}")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise usage(f"{path}: no such file", fix=fix) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise usage(f"cannot read {path}: {reason}") from error
    if len(data) > MAX_BYTES:
        raise usage(f"{path}: more than {MAX_BYTES >> 20} MiB: that is not {what}")
    return data


def bad(path: Path, what: str, problem: str, fix: str) -> CgtoolError:
    """The file is not what it should be: exit 2."""
    return usage(f"{path}: not {what} that can be read: {problem}", fix=fix)


def schema(path: Path, data: bytes, what: str, newest: dict[str, int], fix: str) -> str:
    """Which of the schemas in ``newest`` (name to the newest version known) the text names.

    Raises CgtoolError (exit 2) for another one, and for a version that this cgtool does not know.
    """
    if not data.strip():
        raise bad(path, what, "it is empty", fix)
    head = decode(path, data, _Head, what, fix)
    if head.schema not in newest:
        names = " or ".join(map(repr, newest))
        raise bad(path, what, f"its schema is {head.schema[:80]!r}, not {names}", fix)
    known = newest[head.schema]
    if head.schema_version > known:
        raise usage(
            f"{path} was written by a newer cgtool (schema {head.schema_version}; this one reads "
            f"up to {known})",
            fix="upgrade cgtool",
        )
    if head.schema_version < 1:
        raise bad(path, what, f"schema version {head.schema_version}", fix)
    return head.schema


def decode(path: Path, data: bytes, kind: type[T], what: str, fix: str) -> T:
    """The text as a struct. Raises CgtoolError (exit 2) for what is none."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as error:
        raise bad(path, what, " ".join(str(error).split())[:300], fix) from error


def repeated(data: bytes) -> str | None:
    """The first key that stands twice in one object: what a merge leaves that kept both sides.
    Readers take the last one in silence."""
    found: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        keys = [key for key, _ in pairs]
        if len(set(keys)) < len(keys):
            found.append(next(key for at, key in enumerate(keys) if key in keys[:at]))

    try:
        json.loads(data, object_pairs_hook=look)
    except (ValueError, RecursionError):
        return None
    return found[0] if found else None


def encodable(value: Any) -> Any:
    """Plain data that JSON can hold: a file name that is not UTF-8 comes from Python as lone
    surrogates, which JSON has not; they become escapes."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {encodable(key): encodable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [encodable(inner) for inner in value]
    return value
