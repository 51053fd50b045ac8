"""Read and write ``.cgt`` files: one zip of JSON parts (docs/capture-format.md).

A capture is read back as it was written, or not at all: a file that was cut, altered, or made to
do harm is refused with one sentence (``cgtool.model.archive``, ``cgtool.model.validation``).

An older schema is read as it is, because a new field has a default. A change that a default
cannot express raises ``SCHEMA_VERSION`` and turns the old form into the new one in ``read``,
between decoding and ``inconsistency``.
"""

from __future__ import annotations

import contextlib
import gc
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from cgtool.model.archive import Archive, bad, open_archive
from cgtool.model.atomic import atomic
from cgtool.model.capture import (
    SCHEMA_VERSION,
    Bench,
    Capture,
    Caveat,
    Entry,
    Environment,
    Frame,
    Function,
    Graph,
    Memory,
    Origin,
    Stream,
)
from cgtool.model.failure import usage
from cgtool.model.profile import Profile
from cgtool.model.validation import inconsistency

__all__ = ["FORMAT", "atomic", "inconsistency", "read", "read_raw", "write"]

FORMAT = "cgtool-capture"
_DATE = (1980, 1, 1, 0, 0, 0)
"""Of every part: equal captures make equal files."""

T = TypeVar("T")


class Manifest(msgspec.Struct, frozen=True):
    """The part that says what the others are. Unknown keys are ignored."""

    format: str
    schema_version: int
    cgtool: str
    created: str
    entry: Entry
    environment: Environment
    graphs: int
    warmup_iters: int = 0
    warmup_ns: int | None = None
    recorder: str = ""
    caveats: tuple[Caveat, ...] = ()
    has_bench: bool = False
    has_profile: bool = False


class _Head(msgspec.Struct, frozen=True):
    """Enough of a manifest to judge whether the rest can be read."""

    format: str
    schema_version: int


class Tables(msgspec.Struct, frozen=True):
    """What nodes point into."""

    frames: tuple[Frame, ...] = ()
    origins: tuple[Origin, ...] = ()
    functions: tuple[Function, ...] = ()
    streams: tuple[Stream, ...] = ()


def write(path: Path, capture: Capture, raw: Mapping[str, str] | None = None) -> None:
    """Write a capture, whole or not at all. ``raw`` holds texts by ``Graph.raw_dot`` name.

    Raises CgtoolError (exit 2) when the place cannot be written.
    """
    manifest = Manifest(
        FORMAT,
        SCHEMA_VERSION,
        capture.cgtool,
        capture.created,
        capture.entry,
        capture.environment,
        len(capture.graphs),
        capture.warmup_iters,
        capture.warmup_ns,
        capture.recorder,
        capture.caveats,
        capture.bench is not None,
        capture.profile is not None,
    )
    tables = Tables(capture.frames, capture.origins, capture.functions, capture.streams)
    with atomic(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:

        def put(name: str, value: object) -> None:
            _put(archive, name, _json(value))

        put("manifest.json", manifest)
        put("tables.json", tables)
        for index, graph in enumerate(capture.graphs):
            put(f"graphs/{index}.json", graph)
        put("memory.json", capture.memory)
        if capture.bench is not None:
            put("bench.json", capture.bench)
        if capture.profile is not None:
            put("profile.json", capture.profile)
        for name, text in (raw or {}).items():
            _put(archive, f"raw/{name}", text.encode(errors="replace"))


def _put(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    info = zipfile.ZipInfo(name, _DATE)
    info.external_attr = 0o644 << 16
    archive.writestr(info, data, zipfile.ZIP_DEFLATED, compresslevel=1)


def _json(value: object) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        # A file name that is not UTF-8 comes from Python as lone surrogates, which JSON has not.
        return msgspec.json.encode(_encodable(msgspec.to_builtins(value)))


def _encodable(value: object) -> object:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {key: _encodable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(inner) for inner in value]
    return value


def _decode(archive: Archive, name: str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(archive.read(name), type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as error:
        raise bad(archive.path, f"the part {name}: {error}") from error


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """While a capture is built nothing is garbage, and looking for it takes as long as reading."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _manifest(archive: Archive) -> Manifest:
    head = _decode(archive, "manifest.json", _Head)
    if head.format != FORMAT:
        raise bad(archive.path, f"its format is {head.format[:80]!r}")
    if head.schema_version > SCHEMA_VERSION:
        raise usage(
            f"{archive.path} was written by a newer cgtool (schema {head.schema_version}; this "
            f"one reads up to {SCHEMA_VERSION})",
            fix="upgrade cgtool",
        )
    if head.schema_version < 1:
        raise bad(archive.path, f"schema version {head.schema_version}")
    archive.require_known_names()
    return _decode(archive, "manifest.json", Manifest)


def read(path: Path) -> Capture:
    """Read a capture. Raises CgtoolError (exit 2) for every file that is not a sound one."""
    with _no_collection(), open_archive(path) as archive:
        manifest = _manifest(archive)
        parts = sum(name.startswith("graphs/") for name in archive.names)
        if manifest.graphs != parts:
            raise bad(path, f"{parts} graphs where its manifest says {manifest.graphs}")
        tables = _decode(archive, "tables.json", Tables)
        graphs = tuple(
            _decode(archive, f"graphs/{index}.json", Graph) for index in range(manifest.graphs)
        )
        capture = Capture(
            entry=manifest.entry,
            environment=manifest.environment,
            created=manifest.created,
            cgtool=manifest.cgtool,
            graphs=graphs,
            frames=tables.frames,
            origins=tables.origins,
            functions=tables.functions,
            streams=tables.streams,
            memory=_decode(archive, "memory.json", Memory),
            warmup_iters=manifest.warmup_iters,
            warmup_ns=manifest.warmup_ns,
            recorder=manifest.recorder,
            bench=_decode(archive, "bench.json", Bench) if manifest.has_bench else None,
            profile=_decode(archive, "profile.json", Profile) if manifest.has_profile else None,
            caveats=manifest.caveats,
        )
        problem = inconsistency(capture)
        if problem is not None:
            raise bad(path, problem)
        for graph in graphs:
            if graph.raw_dot is not None and f"raw/{graph.raw_dot}" not in archive.names:
                raise bad(path, f"{graph.name}: its raw text is missing")
    return capture


def read_raw(path: Path, name: str) -> str:
    """The text of a raw part (``Graph.raw_dot``)."""
    with open_archive(path) as archive:
        _manifest(archive)
        return archive.read(f"raw/{name}").decode(errors="replace")
