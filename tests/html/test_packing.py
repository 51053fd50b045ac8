"""What the page holds: columns come out as they went in, and no text can be more than text."""

from __future__ import annotations

import json
import math
import re
import zlib
from array import array
from base64 import b64decode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from cgtool.html.content import pack
from cgtool.html.packing import LONGEST, Packer
from cgtool.html.report import html, page
from cgtool.model.capture import Environment
from tests.builders import capture
from tests.strategies import captures
from tests.strategies import names as hostile_names


def unpacked(block):
    """The header and the columns of a block, by the description in packing.py."""
    data = zlib.decompress(b64decode(block, validate=True), wbits=-15)
    length = int.from_bytes(data[:4], "little")
    header, body = json.loads(data[4 : 4 + length]), data[4 + length :]
    columns = {}
    for name, column in header.pop("columns").items():
        width, count = array(column["type"]).itemsize, column["length"]
        planes = body[column["at"] : column["at"] + width * count]
        values = array(column["type"])
        values.frombytes(
            bytes(planes[plane * count + row] for row in range(count) for plane in range(width))
        )
        columns[name] = read(column, values)
    return header, columns


def read(column, values):
    if column["type"] == "f":
        return [None if math.isnan(value) else value for value in values]
    shown, total = [], 0
    for value in map(int, values):
        step = -(value + 1) // 2 if value % 2 else value // 2
        total = total + step if column["rising"] else value
        shown.append(None if total == 0 else total - 1)
    return shown


@given(st.lists(st.none() | st.integers(0, 1 << 50)), st.booleans())
def test_integers_come_out_as_they_went_in(values, rising):
    packer = Packer()
    packer.integers("x", values, rising=rising)
    _, columns = unpacked(packer.block({}))
    assert columns["x"] == values


@given(st.lists(st.none() | st.floats(0, 2.0**100, width=32)))
def test_fractions_come_out_as_they_went_in(values):
    packer = Packer()
    packer.fractions("x", values)
    packer.integers("after", [7])
    _, columns = unpacked(packer.block({}))
    assert columns == {"x": values, "after": [7]}


def test_a_column_of_steps_takes_hardly_any_room():
    packer = Packer()
    packer.integers("x", range(100_000), rising=True)
    assert len(packer.block({})) < 1000


trees = st.recursive(
    hostile_names | st.integers(-5, 5) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(hostile_names, inner, max_size=3),
)


def texts(tree):
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield key
            yield from texts(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from texts(value)


@given(trees)
def test_every_text_is_printable_and_short(tree):
    header, _ = unpacked(Packer().block({"tree": tree}))
    assert all(text.isprintable() for text in texts(header))


def test_the_middle_of_a_long_text_is_left_out():
    header, _ = unpacked(Packer().block({"tree": "a" * 10_000_000 + "z"}))
    assert len(header["tree"]) == LONGEST
    assert header["tree"].endswith("z")


@settings(max_examples=30)
@given(captures())
def test_a_page_differs_from_another_only_in_letters_and_digits(capture):
    text = html([("x.cgt", capture)]).decode()
    data = re.search(r' id="data">([^<]*)</script>', text)[1]
    assert re.fullmatch(r"[A-Za-z0-9+/=]*", data)
    assert text == page(data).decode()


@pytest.mark.parametrize("forbidden", ["innerHTML", "outerHTML", "insertAdjacentHTML", "eval("])
def test_no_script_turns_text_into_markup(forbidden):
    assert forbidden not in page("").decode()


def test_nothing_can_be_loaded():
    text = page("").decode()
    assert "default-src 'none'" in text
    assert "'unsafe-inline'" not in text
    assert re.findall(r"https?://[^\"' ]*", text) == []


def test_the_facts_of_a_run_without_a_device():
    nothing = structs.replace(capture([]), environment=Environment(""))
    facts = dict(pack(nothing, "x.cgt", "0/", Packer())["facts"])
    assert facts["device"] == "no device: nothing was recorded"
    assert "with" not in facts
