"""Specs to tensors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cgtool.model.failure import CgtoolError
from cgtool.program.classify import make_input, make_inputs
from cgtool.program.spec import DTYPES, parse_input


def input_of(text: str, seed: int = 0):
    torch.manual_seed(seed)
    return make_input(parse_input(text), "cpu")


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", sorted(set(DTYPES.values())))
@pytest.mark.parametrize("fill", ["", "?zeros", "?ones"])
def test_every_dtype_can_be_made(dtype, fill):
    tensor = input_of(f"x={dtype}[3,5]{fill}")
    assert tensor.dtype is getattr(torch, dtype)
    assert tensor.shape == (3, 5)
    assert not tensor.requires_grad
    if fill:
        assert (tensor.to(torch.complex128) == (fill == "?ones")).all()


def test_grad_is_set_on_a_leaf():
    for dtype in ("float32", "bfloat16", "float8_e4m3fn", "complex32"):
        tensor = input_of(f"x={dtype}[4]?grad")
        assert tensor.requires_grad
        assert tensor.is_leaf


@settings(max_examples=30)
@given(st.integers(1, 127), st.sampled_from(["int8", "int32", "int64", "uint8", "uint64"]))
def test_integers_stay_below(below, dtype):
    values = input_of(f"x={dtype}[200]?int<{below}").to(torch.int64)
    assert values.min() >= 0
    assert values.max() < below
    if below > 1:
        assert len(values.unique()) > 1


def test_the_largest_bounds():
    assert input_of("x=int64[50]?int<9223372036854775807").max() > 1 << 50
    assert input_of("x=uint32[50]?int<4294967296").to(torch.int64).max() > 1 << 31


def test_scalars_and_shapes():
    assert input_of("s=?scalar=0.5") == 0.5
    assert input_of("s=?scalar=True") is True
    assert input_of("t=float32[]").dim() == 0
    assert input_of("t=float32[0,3]").numel() == 0


def test_random_values_differ_and_a_seed_repeats_them():
    assert torch.equal(input_of("x=f32[9]"), input_of("x=f32[9]"))
    assert not torch.equal(input_of("x=f32[9]"), input_of("x=f32[9]", seed=1))
    assert input_of("x=f32[4000]").std() == pytest.approx(1, abs=0.1)


def test_no_room():
    with pytest.raises(CgtoolError) as caught:
        input_of("x=float64[1000000,1000000]")
    assert caught.value.failure.exit_code == 2
    assert "cannot be created on cpu" in caught.value.failure.message


def test_positions_come_in_order():
    specs = [parse_input(text) for text in ("1=?scalar=1", "0=?scalar=0", "y=?scalar=2")]
    assert make_inputs(specs, "cpu") == ((0, 1), {"y": 2})
