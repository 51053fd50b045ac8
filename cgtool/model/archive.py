"""The zip around a capture, read as if an enemy had made it.

Everything that a zip's headers say is a claim. Claims are bounded before anything is unpacked, and
what really comes is counted against them. Nothing is ever extracted to a path.
"""

from __future__ import annotations

import contextlib
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from cgtool.model.failure import CgtoolError, usage

MAX_PARTS = 20_000
MAX_DIRECTORY_BYTES = 4 << 20
"""Of the list of parts, which ``zipfile`` reads in one go."""
MAX_MANIFEST_BYTES = 16 << 20
MAX_PART_BYTES = 512 << 20
"""Five times what a graph of a million nodes takes."""
MAX_TOTAL_BYTES = 2 << 30
MAX_RATIO = 400
"""JSON of 100,000 equal nodes packs 60 times; deflate can reach 1,030."""
_RATIO_MATTERS = 1 << 20

_NAMES = re.compile(
    r"(?:manifest|tables|memory|bench|profile)\.json"
    r"|graphs/(?:0|[1-9][0-9]{0,5})\.json|raw/[\w. -]{1,128}",
    re.ASCII,
)
_END = struct.Struct("<4s4H2LH")
"""The end-of-central-directory record, which closes a zip that has no comment."""
_CHUNK = 1 << 20


def bad(path: Path, what: str) -> CgtoolError:
    """The file cannot be read as a capture: exit 2."""
    return usage(
        f"{path}: not a readable capture file: {what}",
        fix="capture again with `cgtool capture ENTRY -o FILE.cgt`",
    )


class Archive:
    """The parts of one open file. ``names`` are those it has."""

    def __init__(self, path: Path, file: zipfile.ZipFile) -> None:
        self.path = path
        self._file = file
        self._left = MAX_TOTAL_BYTES
        self._infos: dict[str, zipfile.ZipInfo] = {}
        infos = file.infolist()
        if len(infos) > MAX_PARTS:
            raise bad(path, f"{len(infos)} parts, more than {MAX_PARTS}")
        for info in infos:
            self._check(info)
            self._infos[info.filename] = info
        if sum(info.file_size for info in infos) > MAX_TOTAL_BYTES:
            raise bad(path, f"it unpacks to more than {MAX_TOTAL_BYTES >> 30} GiB")
        self.names = frozenset(self._infos)

    def _check(self, info: zipfile.ZipInfo) -> None:
        name = info.filename
        if name in self._infos:
            raise bad(self.path, f"the part {name!r} is there twice")
        if name.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", name) or ":" in name:
            raise bad(self.path, f"a part is named {name!r}, which leads out of the file")
        if stat.S_ISLNK(info.external_attr >> 16):
            raise bad(self.path, f"the part {name!r} is a symbolic link")
        if info.flag_bits & 0x1:
            raise bad(self.path, f"the part {name!r} is encrypted")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise bad(self.path, f"the part {name!r} is packed in a way that cgtool never uses")
        limit = MAX_MANIFEST_BYTES if name == "manifest.json" else MAX_PART_BYTES
        if info.file_size > limit:
            raise bad(self.path, f"the part {name!r} unpacks to {info.file_size:,} bytes")
        if info.file_size > max(_RATIO_MATTERS, info.compress_size * MAX_RATIO):
            raise bad(
                self.path,
                f"the part {name!r} unpacks to {info.file_size:,} bytes from "
                f"{info.compress_size:,}: that is no capture",
            )

    def require_known_names(self) -> None:
        """Raises CgtoolError for a part that this format does not have."""
        for name in self.names:
            if _NAMES.fullmatch(name) is None:
                raise bad(self.path, f"it has a part {name!r}, which no cgtool writes")

    def read(self, name: str) -> bytes:
        """One part, unpacked."""
        info = self._infos.get(name)
        if info is None:
            raise bad(self.path, f"the part {name} is missing")
        limit = min(self._left, info.file_size)
        chunks: list[bytes] = []
        size = 0
        with self._file.open(info) as file:
            # In bounded pieces, because one big read unpacks first and counts afterwards.
            while chunk := file.read(_CHUNK):
                size += len(chunk)
                if size > limit:
                    raise bad(self.path, f"the part {name} unpacks to more than it says")
                chunks.append(chunk)
        if size != info.file_size:
            raise bad(self.path, f"the part {name} is cut off")
        self._left -= size
        return b"".join(chunks)


@contextlib.contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """Raises CgtoolError (exit 2) for whatever is wrong with the file, now or while reading."""
    try:
        # A pipe or a device would be waited for, or never end.
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise usage(f"{path} is a directory, not a capture file")
        if not stat.S_ISREG(mode):
            raise usage(f"{path} is a device or a pipe, not a capture file")
        with path.open("rb") as opened:
            _check_directory(path, opened)
            with zipfile.ZipFile(opened) as file:
                yield Archive(path, file)
    except FileNotFoundError as error:
        raise usage(f"{path}: no such file") from error
    except OSError as error:
        raise usage(f"cannot read {path}: {error.strerror or error}") from error
    except (
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
        EOFError,
        NotImplementedError,
        OverflowError,
        RuntimeError,
        ValueError,
    ) as error:
        raise bad(path, str(error) or type(error).__name__) from error
    except MemoryError as error:
        raise bad(path, "there is not enough memory to read it") from error


def _check_directory(path: Path, file: IO[bytes]) -> None:
    """Bound the list of parts before ``zipfile`` reads all of it."""
    size = file.seek(0, 2)
    if size == 0:
        raise bad(path, "it is empty")
    if size < _END.size:
        raise bad(path, "it is no zip file")
    file.seek(max(size - _END.size - 20, 0))
    tail = file.read()
    end = _END.unpack(tail[-_END.size :])
    if end[0] != b"PK\x05\x06" or end[7] != 0:
        raise bad(path, "it is no zip file, or cut off")
    # A zip64 locator would make zipfile believe another, unbounded record.
    if tail[:4] == b"PK\x06\x07" or end[5] > MAX_DIRECTORY_BYTES or end[4] > MAX_PARTS:
        raise bad(path, "its list of parts is too long")
    file.seek(0)
