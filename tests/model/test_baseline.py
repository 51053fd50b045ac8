"""The baseline file: what it holds comes back, reviews can read it, and no bad one gets in."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cgtool.analysis.gate.measured import measure
from cgtool.model import baseline, files
from cgtool.model.baseline import Baseline, encode, read, write
from cgtool.model.capture_file import read as read_capture
from cgtool.model.failure import CgtoolError
from cgtool.model.measurements import Clock, Samples
from tests.builders import HOSTILE_NAMES, capture, small
from tests.gold_files import check
from tests.hostile import refusal

CAPTURES = Path(__file__).resolve().parent.parent.parent / "samples" / "captures"


@pytest.fixture
def good() -> Baseline:
    return measure([small()]).values


refuse = partial(refusal.refuse, read, peak_bytes=3 * files.MAX_BYTES, longest=700)


def edited(path: Path, good: Baseline, change: Any) -> Path:
    value = msgspec.json.decode(encode(good))
    change(value)
    path.write_bytes(msgspec.json.encode(value))
    return path


def test_what_was_written_comes_back(good: Baseline, tmp_path: Path) -> None:
    recorded = measure([read_capture(CAPTURES / "mlp-bench.cgt")]).values
    for values in (good, recorded):
        write(tmp_path / "b.json", values)
        back = read(tmp_path / "b.json")
        assert back.counts == values.counts
        assert back.ops == values.ops
        assert back.capture_ns == values.capture_ns
        assert back.clock == values.clock
        assert [sample.device_ns for sample in back.samples] == [
            pytest.approx(sample.device_ns, abs=1e-3) for sample in values.samples
        ]
        # Once written, it does not move anymore.
        assert encode(back) == (tmp_path / "b.json").read_bytes()
    assert len(recorded.samples) == 6
    assert recorded.clock == Clock((1980,), (3201,), (36,), (134.275,))


def test_its_text_is_one_that_a_review_can_read(good: Baseline) -> None:
    """A gold file; and one more node changes as many lines as there are counts of it."""
    samples = (
        Samples("eager", "forward", (10.0, 20.5), run=0),
        Samples("eager", "forward", (10.25, 1234.5678), run=1),
    )
    values = msgspec.structs.replace(
        good, samples=samples, capture_ns=(1_000, 2_000), clock=Clock((1980,), throttle_reasons=())
    )
    text = encode(values).decode()
    check("gate/baseline.json", text)
    counts = {**values.counts, "nodes": 14, "nodes.forward": 8}
    other = encode(msgspec.structs.replace(values, counts=counts)).decode()
    before, after = text.splitlines(), other.splitlines()
    assert [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]] == [
        ('    "nodes": 12,', '    "nodes": 14,'),
        ('    "nodes.forward": 7,', '    "nodes.forward": 8,'),
    ]


def test_where_the_file_lay_is_not_kept(good: Baseline, tmp_path: Path) -> None:
    entry = msgspec.structs.replace(good.entry, file="/home/me/secret/model.py", line=3)
    write(tmp_path / "b.json", msgspec.structs.replace(good, entry=entry))
    assert "secret" not in (tmp_path / "b.json").read_text()


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_any_name_can_be_written(good: Baseline, tmp_path: Path, name: str) -> None:
    entry = msgspec.structs.replace(good.entry, spec=name)
    write(tmp_path / "b.json", msgspec.structs.replace(good, entry=entry, ops={name: 3}))
    back = read(tmp_path / "b.json")
    assert back.ops[back.entry.spec] == 3


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"{", "truncated"),
        (b"[]", "object"),
        (b"null", "object"),
        (b"\xff\xfe{}", ""),
        (b"PK\x03\x04" * 9, ""),
        (b"[" * 500_000, ""),
        (b"{}", "schema"),
        (b'{"schema": "cgtool-check", "schema_version": 1}', "'cgtool-check'"),
        (b'{"schema": "cgtool-baseline", "schema_version": "1"}', "int"),
        (b'{"schema": "cgtool-baseline", "schema_version": 0}', "schema version 0"),
        (b'{"schema": "cgtool-baseline", "schema_version": 1}', "entry"),
        (b'{"schema": "cgtool-baseline", "schema_version": 2}', "newer cgtool"),
        (b'{"schema": "cgtool-baseline", "schema_version": 1' + b"0" * 400 + b"}", ""),
    ],
)
def test_files_that_are_not_baselines(tmp_path: Path, content: bytes, word: str) -> None:
    (tmp_path / "b.json").write_bytes(content)
    refuse(tmp_path / "b.json", word)


def test_no_file_a_directory_a_pipe_a_device(tmp_path: Path) -> None:
    refuse(tmp_path / "b.json", "no such file")
    refuse(tmp_path, "directory")
    os.mkfifo(tmp_path / "pipe")
    refuse(tmp_path / "pipe", "pipe")
    refuse(Path("/dev/zero"), "device")


def test_a_merge_that_kept_both_sides(good: Baseline, tmp_path: Path) -> None:
    text = encode(good).decode()
    line = '    "nodes": 12,\n'
    assert text.count(line) == 1
    path = tmp_path / "b.json"
    path.write_text(text.replace(line, line + '    "nodes": 900,\n'))
    refuse(path, "'nodes' is repeated")


def test_a_file_without_end(tmp_path: Path) -> None:
    with (tmp_path / "b.json").open("wb") as file:
        file.truncate(files.MAX_BYTES + 2)
    refuse(tmp_path / "b.json", "larger than 64 MiB")


def test_every_truncation(good: Baseline, tmp_path: Path) -> None:
    data = encode(good).rstrip()
    for length in range(0, len(data), max(len(data) // 61, 1)):
        (tmp_path / "b.json").write_bytes(data[:length])
        refuse(tmp_path / "b.json")


@settings(max_examples=300)
@given(data=st.data())
def test_changed_bytes_are_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(encode(measure([small()]).values))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "flipped.json"
    path.write_bytes(content)
    try:
        back = read(path)
    except CgtoolError as error:
        assert error.failure.exit_code == 2
    else:
        assert baseline.inconsistency(back) is None


HUGE = 10**300
TIMES = {"name": "replay", "phase": "forward", "device_ns": [1.0]}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda b: b["counts"].update(nodes=-1), "negative"),
        (lambda b: b["counts"].update(nodes=HUGE), "nodes"),
        (lambda b: b["counts"].update(nodes="12"), "counts"),
        (lambda b: b["counts"].update(nodes=None), "counts"),
        (lambda b: b.update(counts=[1]), "counts"),
        (lambda b: b.pop("counts"), "counts"),
        (lambda b: b["ops"].update(mm=-3), "mm"),
        (lambda b: b["ops"].update(mm=2.5), "ops"),
        (lambda b: b.update(capture_ns=[0]), "capture_ns[0]"),
        (lambda b: b.update(capture_ns=[-5]), "capture_ns[0]"),
        (lambda b: b.update(capture_ns=[HUGE]), "capture_ns[0]"),
        (lambda b: b.update(samples=[{**TIMES, "device_ns": []}]), "has no times"),
        (lambda b: b.update(samples=[{**TIMES, "device_ns": [1.0, 0]}]), "a time of 0"),
        (lambda b: b.update(samples=[{**TIMES, "device_ns": [-2.5]}]), "device_ns[0]"),
        (lambda b: b.update(samples=[{**TIMES, "device_ns": ["1"]}]), "device_ns"),
        (lambda b: b.update(samples=[{**TIMES, "name": "graph"}]), "neither eager nor replay"),
        (lambda b: b.update(samples=[{**TIMES, "run": -1}]), "run"),
        (lambda b: b.update(samples=[TIMES, TIMES]), "repeated"),
        (lambda b: b.update(environment="H200"), "environment"),
        (lambda b: b["entry"].pop("spec"), "spec"),
    ],
)  # fmt: skip
def test_what_no_machine_measured(good: Baseline, tmp_path: Path, change: Any, word: str) -> None:
    refuse(edited(tmp_path / "b.json", good, change), word)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_invalid_numbers(good: Baseline, tmp_path: Path, number: str) -> None:
    text = encode(good).decode().replace('"nodes": 12', f'"nodes": {number}')
    assert number in text
    (tmp_path / "b.json").write_text(text)
    refuse(tmp_path / "b.json")


def test_keys_that_a_later_version_adds_are_left_alone(good: Baseline, tmp_path: Path) -> None:
    def change(value: Any) -> None:
        value["later"] = {"a": 1}
        value["counts"]["blocks"] = 7

    assert read(edited(tmp_path / "b.json", good, change)).counts["blocks"] == 7


def test_a_baseline_that_cannot_be_written_leaves_the_old_one(
    good: Baseline, tmp_path: Path
) -> None:
    with pytest.raises(CgtoolError, match="cannot write"):
        write(tmp_path / "no" / "b.json", good)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_capture_has_a_baseline_too(tmp_path: Path) -> None:
    write(tmp_path / "b.json", measure([capture([])]).values)
    assert read(tmp_path / "b.json").counts["nodes"] == 0
