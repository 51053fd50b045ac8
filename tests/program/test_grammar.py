"""The --input grammar: what it reads, and that every mistake is pointed at."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from cgtool.model.failure import CgtoolError, Failure
from cgtool.program.spec import (
    _INTEGER_BITS,
    DTYPES,
    GRAMMAR,
    InputSpec,
    input_text,
    is_floating,
    parse_input,
    parse_inputs,
)


def wrong(*texts: str) -> Failure:
    with pytest.raises(CgtoolError) as caught:
        parse_inputs(texts)
    assert caught.value.failure.exit_code == 2
    return caught.value.failure


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("x=float32[4,128]", InputSpec("x", "float32", (4, 128))),
        ("x=f32[4, 128]?grad", InputSpec("x", "float32", (4, 128), grad=True)),
        ("x=bf16[1]?zeros?grad", InputSpec("x", "bfloat16", (1,), grad=True, fill="zeros")),
        ("ids=long[4]?int<1000", InputSpec("ids", "int64", (4,), below=1000)),
        ("t=half[]", InputSpec("t", "float16")),
        ("mask=bool[0]?ones", InputSpec("mask", "bool", (0,), fill="ones")),
        ("z=complex64[2]?grad", InputSpec("z", "complex64", (2,), grad=True)),
        ("s=?scalar=0.5", InputSpec("s", scalar=0.5)),
        ("s=?scalar=-3", InputSpec("s", scalar=-3)),
        ("s=?scalar=1e-4", InputSpec("s", scalar=1e-4)),
        ("s=?scalar=True", InputSpec("s", scalar=True)),
        ("s=?scalar=-inf", InputSpec("s", scalar=float("-inf"))),
        ("0=float32[2]", InputSpec("0", "float32", (2,))),
        ("größe=int8[2]?int<128", InputSpec("größe", "int8", (2,), below=128)),
    ],
)
def test_reads(text, spec):
    assert parse_input(text) == spec
    assert type(parse_input(text).scalar) is type(spec.scalar)


def test_every_example_of_the_help_is_read():
    examples = [line.split()[0] for line in GRAMMAR.splitlines()[1:] if line.strip()]
    assert len(examples) >= 6
    for text in examples:
        parse_input(text)


def test_every_dtype_is_pytorchs():
    for name in DTYPES.values():
        assert isinstance(getattr(torch, name), torch.dtype)
        assert is_floating(name) == (
            getattr(torch, name).is_floating_point or getattr(torch, name).is_complex
        )


@pytest.mark.parametrize(
    ("text", "marked", "reason"),
    [
        ("x", "", "expected NAME="),
        ("", "", "expected NAME="),
        ("=float32[4]", "=float32[4]", "not a parameter name"),
        ("a-b=float32[4]", "a-b=float32[4]", "not a parameter name"),
        ("class=float32[4]", "class=", "not a parameter name"),
        ("x=", "", "expected DTYPE"),
        ("x=float32", "float32", "not DTYPE[SHAPE]"),
        ("x=[4]", "[4]", "not a dtype"),
        ("x=float33[4]", "float33", "not a dtype"),
        ("x=float32[4,a]", "a]", "'a' is not a size"),
        ("x=float32[4,-1]", "-1]", "'-1' is not a size"),
        ("x=float32[4,]", "]", "'' is not a size"),
        ("x=float32[4]grad", "grad", "not DTYPE[SHAPE]"),
        ("x=float32[4]?", "", "not one of ?grad"),
        ("x=float32[4]?gard", "gard", "not one of ?grad"),
        ("x=float32[4]?grad,zeros", "grad,zeros", "not one of ?grad"),
        ("x=int64[4]?grad", "grad", "cannot require grad"),
        ("x=float32[4]?int<5", "int<5", "for integers"),
        ("x=int64[4]?int<0", "0", "not a positive integer"),
        ("x=int64[4]?int<x", "x", "not a positive integer"),
        ("x=int8[4]?int<1000", "1000", "does not hold"),
        ("x=float32[4]?grad?grad", "grad", "repeats"),
        ("x=float32[4]?zeros?ones", "ones", "contradicts"),
        ("x=int64[4]?int<5?ones", "ones", "contradicts"),
        ("x=int64[4]?ones?int<5", "int<5", "contradicts"),
        ("x=?scalar=abc", "abc", "is not a number"),
        ("x=?scalar=", "", "is not a number"),
        ("x=float32[4]?scalar=1", "scalar=1", "cannot be combined"),
        ("x=?scalar=1?grad", "grad", "cannot be combined"),
        ("x=?grad", "grad", "needs DTYPE"),
        ("x=float32[999999999,999999999]", "999999999]", "elements"),
        ("it's=float32[4]", "it's", "not a parameter name"),
    ],
)
def test_points_at_the_character(text, marked, reason):
    failure = wrong(text)
    assert reason in failure.message
    _, quoted, caret = failure.why.splitlines()
    rest = quoted[caret.index("^") :].rstrip("\"'")
    assert rest.startswith(marked) if marked else rest == ""
    assert "float32[4,128]" in failure.fix


def test_the_caret_counts_escapes():
    _, quoted, caret = wrong("\t\n=f32[2]?x").why.splitlines()
    assert caret.index("^") == 1
    _, quoted, caret = wrong("x=f32[\t2,\nq]").why.splitlines()
    assert quoted[caret.index("^") :].startswith("\\nq")


def test_names_are_given_once():
    assert "given twice" in wrong("x=f32[1]", "x=f32[2]").message
    assert "given twice" in wrong("0=f32[1]", "00=f32[2]").message


def test_positions_leave_none_out():
    assert "position 2 but not 1" in wrong("0=f32[1]", "2=f32[1]").message
    assert len(parse_inputs(("1=f32[1]", "0=f32[1]", "x=f32[1]"))) == 3


identifiers = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: (
        name not in ("as", "if", "in", "is", "or", "and", "def", "del", "for", "not")
        and not __import__("keyword").iskeyword(name)
    )
)
shapes = st.lists(st.integers(0, 99), max_size=4).map(tuple)


@st.composite
def specs(draw):
    name = draw(identifiers | st.integers(0, 99).map(str))
    if draw(st.booleans()):
        number = st.booleans() | st.integers(-(10**99), 10**99) | st.floats(allow_nan=False)
        return InputSpec(name, scalar=draw(number))
    dtype = draw(st.sampled_from(sorted(set(DTYPES.values()))))
    fill = draw(st.sampled_from(["random", "zeros", "ones"]))
    below = None
    if fill == "random" and dtype in _INTEGER_BITS and draw(st.booleans()):
        below = draw(st.integers(1, (1 << _INTEGER_BITS[dtype]) - 1))
    grad = is_floating(dtype) and draw(st.booleans())
    return InputSpec(name, dtype, draw(shapes), grad, fill, below)


@given(specs())
def test_what_is_rendered_is_read_back(spec):
    again = parse_input(input_text(spec))
    assert again == spec
    assert type(again.scalar) is type(spec.scalar)


pieces = st.sampled_from(
    ["x", "=", "float32", "[", "]", "4", ",", "?", "grad", "int<", "scalar=", "0.5", "-", " ", "²"]
)


@given(st.text(max_size=30) | st.lists(pieces, max_size=12).map("".join))
@example("x=int64[4]?int<" + "9" * 5000)
@example("x=?scalar=" + "9" * 5000)
@example("²=float32[2]")
@example("\ud800=float32[2]")
def test_any_text_is_answered(text):
    try:
        spec = parse_inputs((text,))[0]
    except CgtoolError as error:
        assert error.failure.exit_code == 2
        assert "^" in error.failure.why or "position" in error.failure.message
    else:
        assert spec.scalar != spec.scalar or parse_input(input_text(spec)) == spec
