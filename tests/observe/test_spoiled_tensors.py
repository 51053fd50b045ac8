"""Tensors of every type can be filled with bytes of which hardly a result is made."""

from __future__ import annotations

import pytest
import torch

from cgtool.observe.raw_tensors import UNUSUAL, has_nan, holds_byte, spoil

NAMES = (
    "float32", "float64", "float16", "bfloat16", "int8", "int32", "int64", "uint8", "uint16",
    "complex64", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn_x2",
)  # fmt: skip
TYPES = [getattr(torch, name) for name in NAMES if hasattr(torch, name)]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_tensor_is_spoiled_without_a_nan(dtype: torch.dtype) -> None:
    tensor = torch.zeros(64, dtype=torch.uint8).view(dtype)
    assert not holds_byte(tensor, UNUSUAL)
    spoil(tensor)
    assert holds_byte(tensor, UNUSUAL)
    assert not has_nan(tensor)


def test_nans_of_small_types_are_seen() -> None:
    for dtype in (torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64):
        assert has_nan(torch.tensor([0.0, float("nan")]).to(dtype))


@pytest.mark.filterwarnings("ignore")
def test_quantized_tensors_keep_their_numbers() -> None:
    tensor = torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)
    spoil(tensor)
    assert torch.equal(tensor.dequantize(), torch.ones(4))
