"""Read and write ``.cgt`` files: one zip of JSON parts (docs/capture-format.md).

Every file is hostile until it has been read: sizes are bounded before and while reading, names
must be the known ones, every index is checked, nothing is executed and nothing written.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

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
from cgtool.model.failure import CgtoolError, usage

FORMAT = "cgtool-capture"
MAX_PARTS = 4096
MAX_PART_BYTES = 1 << 30
MAX_TOTAL_BYTES = 2 << 30
_CHUNK = 1 << 20

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
    )
    tables = Tables(capture.frames, capture.origins, capture.functions, capture.streams)
    with (
        atomic(path) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
    ):

        def put(name: str, value: object) -> None:
            archive.writestr(name, msgspec.json.encode(value))

        put("manifest.json", manifest)
        put("tables.json", tables)
        for index, graph in enumerate(capture.graphs):
            put(f"graphs/{index}.json", graph)
        put("memory.json", capture.memory)
        if capture.bench is not None:
            put("bench.json", capture.bench)
        for name, text in (raw or {}).items():
            archive.writestr(f"raw/{name}", text)


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path`` that takes its place when the block ends well."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise _unwritable(path, error) from error
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a directory")
        temporary.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _unwritable(path: Path, error: OSError) -> CgtoolError:
    reason = error.strerror or str(error)
    return usage(
        f"cannot write {path}: {reason}",
        fix="choose another place with -o, or make room there",
    )


def _bad(path: Path, what: str) -> CgtoolError:
    return usage(
        f"{path}: not a readable capture file: {what}",
        fix="capture again with `cgtool capture ENTRY -o FILE.cgt`",
    )


class _Reader:
    """One open file and what may still be read of it."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path = path
        self.archive = archive
        self.left = MAX_TOTAL_BYTES
        infos = archive.infolist()
        if len(infos) > MAX_PARTS:
            raise _bad(path, f"{len(infos)} parts, more than {MAX_PARTS}")
        self.infos: dict[str, zipfile.ZipInfo] = {}
        for info in infos:
            if info.filename in self.infos:
                raise _bad(path, f"the part {info.filename!r} is there twice")
            if info.filename.startswith("/") or ".." in info.filename.split("/"):
                raise _bad(path, f"a part is named {info.filename!r}")
            if info.flag_bits & 1:
                raise _bad(path, f"the part {info.filename!r} is encrypted")
            self.infos[info.filename] = info
        if sum(info.file_size for info in infos) > MAX_TOTAL_BYTES:
            raise _bad(path, f"it unpacks to more than {MAX_TOTAL_BYTES >> 30} GiB")

    def bytes_of(self, name: str) -> bytes:
        info = self.infos.get(name)
        if info is None:
            raise _bad(self.path, f"the part {name} is missing")
        limit = min(self.left, MAX_PART_BYTES)
        if info.file_size > limit:
            raise _bad(self.path, f"the part {name} unpacks to {info.file_size} bytes")
        chunks: list[bytes] = []
        size = 0
        # The sizes in a zip's headers are claims: count what really comes.
        with self.archive.open(info) as file:
            while chunk := file.read(_CHUNK):
                size += len(chunk)
                if size > limit:
                    raise _bad(self.path, f"the part {name} unpacks to more than it says")
                chunks.append(chunk)
        self.left -= size
        return b"".join(chunks)

    def decode(self, name: str, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(self.bytes_of(name), type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise _bad(self.path, f"the part {name}: {error}") from error


@contextlib.contextmanager
def _open(path: Path) -> Iterator[_Reader]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield _Reader(path, archive)
    except FileNotFoundError as error:
        raise usage(f"{path}: no such file") from error
    except IsADirectoryError as error:
        raise usage(f"{path} is a directory, not a capture file") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError) as error:
        raise _bad(path, str(error) or type(error).__name__) from error
    except OSError as error:
        raise usage(f"cannot read {path}: {error.strerror or error}") from error


def read(path: Path) -> Capture:
    """Read a capture. Raises CgtoolError (exit 2) for every file that is not a sound one."""
    with _open(path) as reader:
        head = reader.decode("manifest.json", _Head)
        if head.format != FORMAT:
            raise _bad(path, f"its format is {head.format!r}")
        if head.schema_version > SCHEMA_VERSION:
            raise usage(
                f"{path} was written by a newer cgtool (schema {head.schema_version}; this one "
                f"reads up to {SCHEMA_VERSION})",
                fix="upgrade cgtool",
            )
        if head.schema_version < 1:
            raise _bad(path, f"schema version {head.schema_version}")
        manifest = reader.decode("manifest.json", Manifest)
        if not 0 <= manifest.graphs <= MAX_PARTS:
            raise _bad(path, f"{manifest.graphs} graphs")
        tables = reader.decode("tables.json", Tables)
        graphs = tuple(
            reader.decode(f"graphs/{index}.json", Graph) for index in range(manifest.graphs)
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
            memory=reader.decode("memory.json", Memory),
            warmup_iters=manifest.warmup_iters,
            warmup_ns=manifest.warmup_ns,
            recorder=manifest.recorder,
            bench=reader.decode("bench.json", Bench) if manifest.has_bench else None,
            caveats=manifest.caveats,
        )
    problem = inconsistency(capture)
    if problem is not None:
        raise _bad(path, problem)
    return capture


def read_raw(path: Path, name: str) -> str:
    """The text of a raw part (``Graph.raw_dot``)."""
    with _open(path) as reader:
        return reader.bytes_of(f"raw/{name}").decode(errors="replace")


def _within(what: str, indices: Iterable[int | None], size: int) -> str | None:
    for index in indices:
        if index is not None and not 0 <= index < size:
            return f"{what} {index} of {size}"
    return None


def inconsistency(capture: Capture) -> str | None:
    """The first index that points nowhere, in words; None for a sound capture."""
    return (
        _bad_tables(capture)
        or next((bad for graph in capture.graphs if (bad := _bad_graph(capture, graph))), None)
        or _bad_nesting(capture)
        or _bad_memory(capture)
    )


def _bad_tables(capture: Capture) -> str | None:
    for number, origin in enumerate(capture.origins):
        bad = _within("frame", origin.frames, len(capture.frames))
        if bad is not None:
            return f"origin {number}: {bad}"
        # A forward origin is interned before the backward one that names it: no cycles.
        if origin.forward is not None and not 0 <= origin.forward < number:
            return f"origin {number}: forward {origin.forward}"
    return None


def _bad_graph(capture: Capture, graph: Graph) -> str | None:
    origins, streams = len(capture.origins), len(capture.streams)
    functions = len(capture.functions)
    allocations, tensors = len(capture.memory.allocations), len(capture.memory.tensors)
    for position, node in enumerate(graph.nodes):
        if node.id != position:
            return f"{graph.name}: node {position} has the id {node.id}"
        if node.origin is not None and not 0 <= node.origin < origins:
            return f"{graph.name}: node {position}: origin {node.origin}"
        if node.stream is not None and not 0 <= node.stream < streams:
            return f"{graph.name}: node {position}: stream {node.stream}"
        if node.kernel is not None:
            if not 0 <= node.kernel.function < functions:
                return f"{graph.name}: node {position}: function {node.kernel.function}"
            for pointer in node.kernel.pointers:
                place = pointer.allocation
                if place is not None and not 0 <= place < allocations:
                    return f"{graph.name}: node {position}: allocation {place}"
                place = pointer.tensor
                if place is not None and not 0 <= place < tensors:
                    return f"{graph.name}: node {position}: tensor {place}"
        if node.copy is not None or node.fill is not None:
            bad = _bad_ends(node.copy, node.fill, allocations, tensors)
            if bad is not None:
                return f"{graph.name}: node {position}: {bad}"
    count = len(graph.nodes)
    for edge in graph.edges:
        if not (0 <= edge.source < count and 0 <= edge.target < count):
            return f"{graph.name}: edge {edge.source} to {edge.target}"
    if graph.pool is not None and not 0 <= graph.pool < len(capture.memory.pools):
        return f"{graph.name}: pool {graph.pool}"
    return None


def _bad_ends(copy: object, fill: object, allocations: int, tensors: int) -> str | None:
    for end in ("source", "destination"):
        for owner in (copy, fill):
            place = getattr(owner, f"{end}_allocation", None)
            if place is not None and not 0 <= place < allocations:
                return f"allocation {place}"
            place = getattr(owner, f"{end}_tensor", None)
            if place is not None and not 0 <= place < tensors:
                return f"tensor {place}"
    return None


def _bad_nesting(capture: Capture) -> str | None:
    count = len(capture.graphs)
    for index, graph in enumerate(capture.graphs):
        for node in graph.nodes:
            for body in node.body:
                # A body comes after its owner: no cycles.
                if not index < body < count:
                    return f"{graph.name}: node {node.id}: body {body}"
        if graph.parent is not None and not 0 <= graph.parent[0] < index:
            return f"{graph.name}: parent {graph.parent[0]}"
    return None


def _bad_memory(capture: Capture) -> str | None:
    memory = capture.memory
    for number, one in enumerate(memory.allocations):
        bad = (
            _within("pool", (one.pool,), len(memory.pools))
            or _within("graph", (one.graph,), len(capture.graphs))
            or _within("origin", (one.origin,), len(capture.origins))
            or _within("stream", (one.stream,), len(capture.streams))
        )
        if bad is None and one.node is not None:
            bad = _within("node", (one.node,), len(capture.graphs[one.graph].nodes))
        if bad is None and (one.bytes < 0 or one.requested_bytes < 0):
            bad = "negative size"
        if bad is not None:
            return f"allocation {number}: {bad}"
    for pool in memory.pools:
        for segment in pool.segments:
            bad = _within("stream", (segment.stream,), len(capture.streams))
            if bad is not None:
                return f"pool {pool.name}: {bad}"
    return None
