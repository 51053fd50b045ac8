"""Files made to break the reader: each is one sentence and exit code 2, at little cost."""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cgtool.model import capture_file
from cgtool.model.capture_file import read, write
from cgtool.model.failure import CgtoolError
from tests.builders import nested, small
from tests.hostile import refusal

Json = Any


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good") / "good.cgt"
    write(path, small(), {"0.dot": "digraph {}"})
    return path


@pytest.fixture(scope="module")
def with_bodies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bodies") / "bodies.cgt"
    write(path, nested())
    return path


refuse = partial(refusal.refuse, read, peak_bytes=50e6)


def rebuilt(source: Path, target: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """A copy with its parts changed."""
    with zipfile.ZipFile(source) as old:
        parts = {name: old.read(name) for name in old.namelist()}
    change(parts)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for name, data in parts.items():
            new.writestr(name, data)
    return target


def edited(source: Path, target: Path, part: str, change: Callable[[Json], None]) -> Path:
    """A copy with the JSON of one part changed."""

    def apply(parts: dict[str, bytes]) -> None:
        value = msgspec.json.decode(parts[part])
        change(value)
        parts[part] = msgspec.json.encode(value)

    return rebuilt(source, target, apply)


# --- not a capture at all


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "empty"),
        (b"x", "is not a capture file"),
        (b"digraph {}\n" * 100, "is not a capture file"),
        (b"PK", "it is truncated"),
        (b"PK\x05\x06" + bytes(18), "manifest.json is missing"),
        (b"\x80\x04\x95" + b"cos\nsystem\n(S'true'\ntR." * 9, "is not a capture file"),
    ],
    ids=["empty", "one byte", "text", "two bytes", "empty zip", "pickle"],
)
def test_other_files(tmp_path: Path, content: bytes, word: str) -> None:
    (tmp_path / "a.cgt").write_bytes(content)
    refuse(tmp_path / "a.cgt", word)


def test_no_file_a_directory_a_pipe_a_device(tmp_path: Path) -> None:
    refuse(tmp_path / "a.cgt", "no such file")
    refuse(tmp_path, "directory")
    os.mkfifo(tmp_path / "pipe")
    refuse(tmp_path / "pipe", "pipe")
    refuse(Path("/dev/zero"), "device")


def test_every_truncation(good: Path, tmp_path: Path) -> None:
    data = good.read_bytes()
    for length in range(0, len(data), max(len(data) // 97, 1)):
        (tmp_path / "a.cgt").write_bytes(data[:length])
        refuse(tmp_path / "a.cgt")


@settings(max_examples=300)
@given(data=st.data())
def test_flipped_bytes_are_noticed_or_harmless(good: Path, data: st.DataObject) -> None:
    content = bytearray(good.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path = good.with_name("flipped.cgt")
    path.write_bytes(content)
    try:
        read(path)
    except CgtoolError as error:
        assert error.failure.exit_code == 2


def test_a_wrong_checksum(good: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(good) as file:
        info = file.getinfo("tables.json")
    data = bytearray(good.read_bytes())
    data[info.header_offset + 30 + len("tables.json") + 20] ^= 0xFF
    (tmp_path / "a.cgt").write_bytes(data)
    refuse(tmp_path / "a.cgt")


# --- what zips can be made to say


def named(target: Path, name: str, **fields: int) -> Path:
    """A zip with one part of that name, and header fields as given."""
    with zipfile.ZipFile(target, "w") as file:
        info = zipfile.ZipInfo("manifest.json")
        info.filename = name
        for field, value in fields.items():
            setattr(info, field, value)
        file.writestr(info, b"{}")
    return target


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "a/../../b", "..\\..\\b", "C:x"]
)
def test_names_that_lead_out(tmp_path: Path, name: str) -> None:
    refuse(named(tmp_path / "a.cgt", name), "leads outside")
    assert [path.name for path in tmp_path.iterdir()] == ["a.cgt"]


def test_a_symbolic_link(tmp_path: Path) -> None:
    refuse(named(tmp_path / "a.cgt", "tables.json", external_attr=0o120777 << 16), "symbolic link")


def test_the_same_part_twice(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.cgt"
    path.write_bytes(good.read_bytes())
    with zipfile.ZipFile(path, "a") as file, pytest.warns(UserWarning):
        file.writestr("memory.json", "{}")
    refuse(path, "repeated")


def test_an_encrypted_part(good: Path, tmp_path: Path) -> None:
    data = bytearray(good.read_bytes())
    at = data.index(b"PK\x01\x02")
    data[at + 8] |= 1
    (tmp_path / "a.cgt").write_bytes(data)
    refuse(tmp_path / "a.cgt", "encrypted")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_another_compression(tmp_path: Path, method: int) -> None:
    with zipfile.ZipFile(tmp_path / "a.cgt", "w", method) as file:
        file.writestr("manifest.json", "{}")
    refuse(tmp_path / "a.cgt", "compression")


def test_a_bomb_with_its_real_size(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.cgt"
    path.write_bytes(good.read_bytes())
    with (
        zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as file,
        file.open("raw/b.dot", "w") as raw,
    ):
        for _ in range(64):
            raw.write(bytes(1 << 20))
    refuse(path, "raw/b.dot", "unpacks to 67,108,864 bytes")


def test_many_parts_that_are_too_much_together(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_file, "MAX_TOTAL_BYTES", 1 << 10)
    path = tmp_path / "a.cgt"
    path.write_bytes(good.read_bytes())
    refuse(path, "it unpacks to more than")


def test_a_bomb_with_a_wrong_size(tmp_path: Path) -> None:
    """The headers say 4 bytes, the stream holds 200 MB."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    stream = b"".join(packer.compress(bytes(1 << 20)) for _ in range(200)) + packer.flush()
    name, crc = b"manifest.json", zlib.crc32(bytes(4))
    common = struct.pack("<4H3L2H", 0, 8, 0, 33, crc, len(stream), 4, len(name), 0)
    local = b"PK\x03\x04" + struct.pack("<H", 20) + common + name + stream
    central = b"PK\x01\x02" + struct.pack("<2H", 20, 20) + common
    central += struct.pack("<3H2L", 0, 0, 0, 0, 0) + name
    end = b"PK\x05\x06" + struct.pack("<4H2LH", 0, 0, 1, 1, len(central), len(local), 0)
    (tmp_path / "a.cgt").write_bytes(local + central + end)
    refuse(tmp_path / "a.cgt")


def test_thousands_of_parts(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.cgt", "w") as file:
        for number in range(capture_file.MAX_PARTS + 1):
            file.writestr(f"graphs/{number}.json", b"")
    refuse(tmp_path / "a.cgt", "parts is too long")


def test_a_zip64_end_record_does_not_get_around_the_bound(tmp_path: Path) -> None:
    end64 = b"PK\x06\x06" + struct.pack("<Q2H2L4Q", 44, 45, 45, 0, 0, 1, 1, 1 << 40, 0)
    locator = b"PK\x06\x07" + struct.pack("<LQL", 0, 0, 1)
    end = b"PK\x05\x06" + struct.pack("<4H2LH", 0, 0, 1, 1, 10, 0, 0)
    (tmp_path / "a.cgt").write_bytes(end64 + locator + end)
    refuse(tmp_path / "a.cgt", "too long")


# --- JSON that is not a capture


@pytest.mark.parametrize("part", ["manifest.json", "tables.json", "graphs/0.json", "memory.json"])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"a":',
        b"[" * 100_000,
        b'{"nodes": 3}',
        b"{}{}",
        b"1e999",
    ],
)
def test_parts_with_other_json(good: Path, tmp_path: Path, part: str, content: bytes) -> None:
    path = rebuilt(good, tmp_path / "a.cgt", lambda parts: parts.update({part: content}))
    if content == b'{"nodes": 3}' and part in ("tables.json", "memory.json"):
        refuse(path)  # Known fields are gone: what points into them points nowhere.
    else:
        refuse(path, part)


@pytest.mark.parametrize("part", ["manifest.json", "tables.json", "graphs/1.json", "memory.json"])
def test_missing_parts(good: Path, tmp_path: Path, part: str) -> None:
    refuse(rebuilt(good, tmp_path / "a.cgt", lambda parts: parts.pop(part) and None))


def test_a_missing_raw_text_and_an_unknown_part(good: Path, tmp_path: Path) -> None:
    refuse(rebuilt(good, tmp_path / "a.cgt", lambda p: p.pop("raw/0.dot") and None), "raw text")
    refuse(
        rebuilt(good, tmp_path / "a.cgt", lambda p: p.update({"x.py": b""})),
        "cgtool does not write",
    )


def test_another_format_and_schema_zero(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.cgt"
    refuse(edited(good, path, "manifest.json", lambda m: m.update(format="other")), "format")
    refuse(edited(good, path, "manifest.json", lambda m: m.update(schema_version=0)), "schema")
    refuse(edited(good, path, "manifest.json", lambda m: m.update(graphs=10**9)), "graphs")


HUGE = 10**300


def first_pointers(graph: Json) -> Json:
    return graph["nodes"][0]["kernel"]["pointers"]


def first_block(memory: Json) -> Json:
    return memory["pools"][0]["segments"][0]["blocks"][0]


BREAKS: list[tuple[str, str, Callable[[Json], Any]]] = [
    ("origin", "graphs/0.json", lambda g: g["nodes"][0].update(origin=99)),
    ("negative origin", "graphs/0.json", lambda g: g["nodes"][0].update(origin=-1)),
    ("stream", "graphs/0.json", lambda g: g["nodes"][0].update(stream=7)),
    ("function", "graphs/0.json", lambda g: g["nodes"][0]["kernel"].update(function=-3)),
    ("grid", "graphs/0.json", lambda g: g["nodes"][0]["kernel"].update(grid=[1, 2])),
    ("negative grid", "graphs/0.json", lambda g: g["nodes"][0]["kernel"].update(grid=[1, -2, 1])),
    ("huge block", "graphs/0.json", lambda g: g["nodes"][0]["kernel"].update(block=[HUGE, 1, 1])),
    ("allocation", "graphs/0.json", lambda g: first_pointers(g)[0].__setitem__(3, 9)),
    ("tensor", "graphs/0.json", lambda g: first_pointers(g)[1].__setitem__(4, 9)),
    ("copy", "graphs/0.json", lambda g: g["nodes"][6]["copy"].update(destination_allocation=5)),
    ("huge bytes", "graphs/0.json", lambda g: g["nodes"][6]["copy"].update(bytes=HUGE)),
    ("id", "graphs/0.json", lambda g: g["nodes"][2].update(id=1)),
    ("string id", "graphs/0.json", lambda g: g["nodes"][2].update(id="2")),
    ("edge", "graphs/0.json", lambda g: g["edges"].append([0, 700])),
    ("negative edge", "graphs/0.json", lambda g: g["edges"].append([-1, 0])),
    ("cycle", "graphs/0.json", lambda g: g["edges"].append([6, 0])),
    ("self edge", "graphs/0.json", lambda g: g["edges"].append([3, 3])),
    ("pool", "graphs/0.json", lambda g: g.update(pool=4)),
    ("body", "graphs/0.json", lambda g: g["nodes"][0].update(body=[5])),
    ("own body", "graphs/0.json", lambda g: g["nodes"][0].update(body=[0])),
    ("body without parent", "graphs/0.json", lambda g: g["nodes"][0].update(body=[1])),
    ("parent", "graphs/1.json", lambda g: g.update(parent=[0, 0])),
    ("missing phase", "graphs/1.json", lambda g: g.pop("phase")),
    ("negative time", "graphs/1.json", lambda g: g.update(capture_ns=-1)),
    ("negative executable", "graphs/1.json", lambda g: g.update(exec_bytes=-1)),
    ("frame", "tables.json", lambda t: t["origins"][0].update(frames=[44])),
    ("forward", "tables.json", lambda t: t["origins"][2].update(forward=2)),
    ("huge line", "tables.json", lambda t: t["frames"][0].__setitem__(1, HUGE)),
    ("huge registers", "tables.json", lambda t: t["functions"][0].update(registers=HUGE)),
    ("allocation's graph", "memory.json", lambda m: m["allocations"][0].update(graph=2)),
    ("allocation's node", "memory.json", lambda m: m["allocations"][0].update(node=70)),
    ("allocation's pool", "memory.json", lambda m: m["allocations"][0].update(pool=1)),
    ("freed before made", "memory.json", lambda m: m["allocations"][1].update(freed_at=0)),
    ("negative size", "memory.json", lambda m: m["allocations"][1].update(bytes=-8)),
    ("segment's stream", "memory.json", lambda m: m["pools"][0]["segments"][0].update(stream=9)),
    ("huge memory block", "memory.json", lambda m: first_block(m).__setitem__(1, HUGE)),
    ("warm-up", "manifest.json", lambda m: m.update(warmup_iters=-1)),
]  # fmt: skip


@pytest.mark.parametrize(("part", "change"), [b[1:] for b in BREAKS], ids=[b[0] for b in BREAKS])
def test_what_points_nowhere_or_no_machine_could_say(
    good: Path, tmp_path: Path, part: str, change: Callable[[Json], None]
) -> None:
    refuse(edited(good, tmp_path / "a.cgt", part, change))


def test_bodies_shared_or_in_a_circle(with_bodies: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.cgt"
    refuse(
        edited(with_bodies, path, "graphs/0.json", lambda g: g["nodes"][0].update(body=[1])),
        "owner",
    )
    refuse(
        edited(with_bodies, path, "graphs/2.json", lambda g: g["nodes"][0].update(body=[1])), "body"
    )


def test_json_that_holds_nan_is_refused(good: Path, tmp_path: Path) -> None:
    def change(parts: dict[str, bytes]) -> None:
        parts["memory.json"] = parts["memory.json"].replace(b"4096", b"NaN", 1)

    refuse(rebuilt(good, tmp_path / "a.cgt", change), "memory.json")


def test_an_unreadable_file(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_to_open(*_args: object, **_kwargs: object) -> io.BytesIO:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse_to_open)
    with pytest.raises(CgtoolError, match=r"cannot read .*good\.cgt: Permission denied"):
        read(good)
