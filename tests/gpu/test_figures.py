"""The figures of a tensor by one kernel are those by PyTorch's ops."""

from __future__ import annotations

import math

import pytest
import torch

pytestmark = pytest.mark.gpu

TYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn,
    torch.complex64, torch.int64, torch.int8, torch.bool,
]  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("count", [1, 1000, 5_000_001])
def test_figures_by_a_kernel(dtype: torch.dtype, count: int) -> None:
    from cgtool.devices.cuda.figures import rows_by_kernel
    from cgtool.devices.values import values_of

    torch.manual_seed(0)
    host = (torch.randn(count) * 8).to(dtype)
    if count > 1 and (dtype.is_floating_point or dtype.is_complex):
        host[count // 2] = float("nan")
        if dtype.itemsize > 1:
            host[count // 3] = float("inf")
    (expected,) = values_of([("out", host)])
    (found,) = values_of([("out", host.cuda())], rows_by_kernel)
    for name in expected.__struct_fields__:
        one, other = getattr(expected, name), getattr(found, name)
        if isinstance(one, float):
            assert math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9), (name, one, other)
        else:
            assert one == other, (name, one, other)
