"""Read and write ``.cgt`` files: one zip of JSON parts (docs/capture-format.md).

A capture is read back as it was written, or not at all: a file that was truncated, altered, or made
to do harm is refused with one sentence. Everything that a zip's headers say is a claim. Claims are
bounded before anything is unpacked, and what is unpacked is counted against them. Nothing is ever
extracted to a path.

An older schema is read as it is, because a new field has a default. A change that a default
cannot express raises ``SCHEMA_VERSION`` and turns the old form into the new one in ``read``,
between decoding and ``inconsistency``.
"""

from __future__ import annotations

import contextlib
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from cgtool.model.capture import (
    SCHEMA_VERSION,
    ArgumentList,
    Capture,
    CaptureHeader,
    Contents,
    Edge,
    Frame,
    Function,
    Graph,
    Memory,
    Module,
    Node,
    Origin,
    Source,
    Stream,
)
from cgtool.model.collector import CollectorPaused
from cgtool.model.failure import CgtoolError, usage
from cgtool.model.files import atomic, encode_json, open_regular, require_known_version
from cgtool.model.ledger import Ledger
from cgtool.model.measurements import Bench, Profile
from cgtool.model.schema import Count
from cgtool.model.validation import inconsistency

FORMAT = "cgtool-capture"
_DATE = (1980, 1, 1, 0, 0, 0)
"""Timestamp of every part: equal captures make equal files."""
MAX_PARTS = 20_000
MAX_DIRECTORY_BYTES = 4 << 20
"""The limit of the list of parts, which ``zipfile`` reads in one go."""
MAX_MANIFEST_BYTES = 16 << 20
"""Of the manifest, and of the sources, which are written with a quarter of it at most."""
MAX_PART_BYTES = 512 << 20
"""Five times what a graph of a million nodes takes."""
MAX_TOTAL_BYTES = 2 << 30
MAX_RATIO = 400
"""JSON of 100,000 equal nodes shrinks 60 times; deflate can reach 1,030."""
_RATIO_MATTERS = 1 << 20

_NAMES = re.compile(
    r"(?:manifest|tables|sources|memory|bench|profile|ledger)\.json"
    r"|graphs/(?:0|[1-9][0-9]{0,5})\.json|raw/[\w. -]{1,128}",
    re.ASCII,
)
_CREATE = "`cgtool capture ENTRY -o FILE.cgt`, or `cgtool run -o FILE.cgt PROGRAM`"
_MAGIC = b"PK"
_END = struct.Struct("<4s4H2LH")
"""The end-of-central-directory record, which closes a zip that has no comment."""

T = TypeVar("T")
_SOURCES = tuple[Source, ...]


class _Version(msgspec.Struct, frozen=True):
    """The part of a manifest that shows whether the rest can be read."""

    format: str
    schema_version: int


class Manifest(CaptureHeader, frozen=True, kw_only=True, omit_defaults=False):
    """The part that lists the others. Unknown keys are ignored."""

    format: str
    """``cgtool-capture``."""
    schema_version: int
    graphs: Count
    """Number of parts ``graphs/N.json``."""
    has_sources: bool = False
    """Whether there is a part ``sources.json``."""
    has_bench: bool = False
    """Whether there is a part ``bench.json``."""
    has_profile: bool = False
    """Whether there is a part ``profile.json``."""
    has_ledger: bool = False
    """Whether there is a part ``ledger.json``."""


class Tables(msgspec.Struct, frozen=True):
    """The lists that nodes refer to."""

    frames: tuple[Frame, ...] = ()
    origins: tuple[Origin, ...] = ()
    argument_lists: tuple[ArgumentList, ...] = ()
    modules: tuple[Module, ...] = ()
    functions: tuple[Function, ...] = ()
    streams: tuple[Stream, ...] = ()


def write(path: Path, capture: Capture, raw: Mapping[str, str] | None = None) -> None:
    """Write a capture, whole or not at all. ``raw`` holds texts by ``Graph.raw_dot`` name.

    Raises CgtoolError (exit 2) when the file cannot be written.
    """
    manifest = Manifest(
        format=FORMAT,
        schema_version=SCHEMA_VERSION,
        graphs=len(capture.graphs),
        has_sources=bool(capture.sources),
        has_bench=capture.bench is not None,
        has_profile=capture.profile is not None,
        has_ledger=capture.ledger is not None,
        **{name: getattr(capture, name) for name in CaptureHeader.__struct_fields__},
    )
    tables = Tables(**{name: getattr(capture, name) for name in Tables.__struct_fields__})
    with atomic(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        parts: dict[str, object] = {"manifest": manifest, "tables": tables}
        parts |= {"sources": capture.sources or None}
        parts |= {f"graphs/{index}": graph for index, graph in enumerate(capture.graphs)}
        parts |= {"memory": capture.memory, "bench": capture.bench, "profile": capture.profile}
        parts |= {"ledger": capture.ledger}
        for name, part in parts.items():
            if part is not None:
                _put(archive, f"{name}.json", encode_json(part))
        for name, text in (raw or {}).items():
            _put(archive, f"raw/{name}", text.encode(errors="replace"))


def _put(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    info = zipfile.ZipInfo(name, _DATE)
    info.external_attr = 0o644 << 16
    archive.writestr(info, data, zipfile.ZIP_DEFLATED, compresslevel=1)


def _decode(archive: _Archive, name: str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(archive.read(name), type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as error:
        raise _bad(archive.path, f"the part {name}: {error}") from error


def _bad(path: Path, problem: str) -> CgtoolError:
    """The file is not a capture that can be read: exit 2."""
    return usage(
        f"{path}: not a readable capture file: {problem}",
        fix=f"capture again: {_CREATE}",
    )


class _Archive:
    """The parts of one open file. ``names`` are those it has."""

    def __init__(self, path: Path, file: zipfile.ZipFile) -> None:
        self.path = path
        self._file = file
        self._left = MAX_TOTAL_BYTES
        self._infos: dict[str, zipfile.ZipInfo] = {}
        infos = file.infolist()
        if len(infos) > MAX_PARTS:
            raise _bad(path, f"{len(infos)} parts, more than {MAX_PARTS}")
        for info in infos:
            self._check(info)
            self._infos[info.filename] = info
        if sum(info.file_size for info in infos) > MAX_TOTAL_BYTES:
            raise _bad(path, f"it unpacks to more than {MAX_TOTAL_BYTES >> 30} GiB")
        self.names = frozenset(self._infos)

    def _check(self, info: zipfile.ZipInfo) -> None:
        name = info.filename
        if name in self._infos:
            raise _bad(self.path, f"the part {name!r} is repeated")
        if name.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", name) or ":" in name:
            raise _bad(self.path, f"a part is named {name!r}, which leads outside")
        if stat.S_ISLNK(info.external_attr >> 16):
            raise _bad(self.path, f"the part {name!r} is a symbolic link")
        if info.flag_bits & 0x1:
            raise _bad(self.path, f"the part {name!r} is encrypted")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise _bad(self.path, f"the part {name!r} has a compression that cgtool does not use")
        is_small = name in ("manifest.json", "sources.json")
        limit = MAX_MANIFEST_BYTES if is_small else MAX_PART_BYTES
        if info.file_size > limit:
            raise _bad(self.path, f"the part {name!r} unpacks to {info.file_size:,} bytes")
        if info.file_size > max(_RATIO_MATTERS, info.compress_size * MAX_RATIO):
            raise _bad(
                self.path,
                f"the part {name!r} unpacks to {info.file_size:,} bytes from "
                f"{info.compress_size:,}: too much for a capture",
            )

    def read(self, name: str) -> bytes:
        """One part, unpacked."""
        info = self._infos.get(name)
        if info is None:
            raise _bad(self.path, f"the part {name} is missing")
        limit = min(self._left, info.file_size)
        with self._file.open(info) as file:
            # With a bound: a read without one unpacks first and counts afterwards.
            data = file.read(limit + 1)
        if len(data) > limit:
            raise _bad(self.path, f"the part {name} unpacks to more than its header says")
        if len(data) != info.file_size:
            raise _bad(self.path, f"the part {name} is truncated")
        self._left -= len(data)
        return data


@contextlib.contextmanager
def _open(path: Path) -> Iterator[_Archive]:
    """Raises CgtoolError (exit 2) for whatever is wrong with the file, now or while reading."""
    try:
        with open_regular(path, "a capture file") as data:
            _check_directory(path, data)
            with zipfile.ZipFile(data) as file:
                yield _Archive(path, file)
    except (
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
        EOFError,
        OverflowError,
        RuntimeError,
        ValueError,
    ) as error:
        raise _bad(path, str(error) or type(error).__name__) from error
    except MemoryError as error:
        raise _bad(path, "there is not enough memory to read it") from error


def _check_directory(path: Path, file: IO[bytes]) -> None:
    """Bound the list of parts before ``zipfile`` reads all of it."""
    magic = file.read(len(_MAGIC))
    size = file.seek(0, 2)
    if size == 0:
        raise _bad(path, "it is empty")
    if magic != _MAGIC:
        raise usage(f"{path} is not a capture file", fix=f"give a .cgt file: {_CREATE}")
    file.seek(max(size - _END.size - 20, 0))
    tail = file.read()
    if len(tail) < _END.size:
        raise _bad(path, "it is truncated")
    end = _END.unpack(tail[-_END.size :])
    if end[0] != b"PK\x05\x06" or end[7] != 0:
        raise _bad(path, "it is truncated")
    # A zip64 locator would make zipfile believe another, unbounded record.
    if tail[:4] == b"PK\x06\x07" or end[5] > MAX_DIRECTORY_BYTES or end[4] > MAX_PARTS:
        raise _bad(path, "its list of parts is too long")
    file.seek(0)


class Sharing:
    """Keeps the kernel launches and edges that are equal in many graphs once. They take two thirds
    of the memory of a program's graphs."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def contents(self, nodes: tuple[Node, ...], edges: tuple[Edge, ...]) -> Contents:
        """The same nodes, which nobody else may have seen yet, and equal edges."""
        share = self._known.setdefault
        for node in nodes:
            kernel = node.kernel
            if kernel is not None:
                # Replacing the node would take five times as long.
                msgspec.structs.force_setattr(node, "kernel", share(kernel, kernel))
        return nodes, tuple([share(edge, edge) for edge in edges])

    def graph(self, graph: Graph) -> Graph:
        nodes, edges = self.contents(graph.nodes, graph.edges)
        return msgspec.structs.replace(graph, nodes=nodes, edges=edges)


def _manifest(archive: _Archive) -> Manifest:
    head = _decode(archive, "manifest.json", _Version)
    if head.format != FORMAT:
        raise _bad(archive.path, f"its format is {head.format[:80]!r}")
    require_known_version(archive.path, head.schema_version, SCHEMA_VERSION)
    if head.schema_version < 1:
        raise _bad(archive.path, f"schema version {head.schema_version}")
    for name in archive.names:
        if _NAMES.fullmatch(name) is None:
            raise _bad(archive.path, f"it has a part {name!r}, which cgtool does not write")
    return _decode(archive, "manifest.json", Manifest)


def read(path: Path, *, empty: bool = False) -> Capture:
    """Read a capture. Raises CgtoolError (exit 2) for every file that is not a consistent one.
    ``empty``: its graphs are, which take most of the time."""
    with CollectorPaused(), _open(path) as archive:
        manifest = _manifest(archive)
        parts = sum(name.startswith("graphs/") for name in archive.names)
        if manifest.graphs != parts:
            raise _bad(path, f"{parts} graphs, but its manifest says {manifest.graphs}")
        tables = _decode(archive, "tables.json", Tables)
        parts_of_graphs = (
            _decode(archive, f"graphs/{index}.json", Graph) for index in range(manifest.graphs)
        )
        memory = _decode(archive, "memory.json", Memory)
        if empty:
            graphs, memory = (Graph("", "step"),) * manifest.graphs, Memory(pools=memory.pools)
        else:
            graphs = tuple(
                map(Sharing().graph, parts_of_graphs) if manifest.has_ledger else parts_of_graphs
            )
        capture = Capture(
            graphs=graphs,
            sources=_decode(archive, "sources.json", _SOURCES) if manifest.has_sources else (),
            memory=memory,
            bench=_decode(archive, "bench.json", Bench) if manifest.has_bench else None,
            profile=_decode(archive, "profile.json", Profile) if manifest.has_profile else None,
            ledger=_decode(archive, "ledger.json", Ledger) if manifest.has_ledger else None,
            **msgspec.structs.asdict(tables),
            **{name: getattr(manifest, name) for name in CaptureHeader.__struct_fields__},
        )
        problem = inconsistency(capture)
        if problem is not None:
            raise _bad(path, problem)
        for graph in graphs:
            if graph.raw_dot is not None and f"raw/{graph.raw_dot}" not in archive.names:
                raise _bad(path, f"{graph.name}: its raw text is missing")
    return capture


def raw_texts(path: Path, capture: Capture) -> dict[str, str]:
    """The raw parts of the graphs of ``capture``, which is in this file, by their names."""
    names = [graph.raw_dot for graph in capture.graphs if graph.raw_dot is not None]
    return {name: read_raw(path, name) for name in names}


def read_raw(path: Path, name: str) -> str:
    """The text of a raw part (``Graph.raw_dot``)."""
    with _open(path) as archive:
        _manifest(archive)
        return archive.read(f"raw/{name}").decode(errors="replace")
