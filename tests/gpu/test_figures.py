"""The figures of tensors by one kernel are those by PyTorch's ops."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from functools import partial

import pytest
import torch

pytestmark = pytest.mark.gpu

TYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip


@pytest.mark.parametrize("counts", [(1,), (1000, 3), (5_000_001, 7, 1)])
def test_figures_by_a_kernel(counts: tuple[int, ...]) -> None:
    from cgtool.devices.cuda.figures import FiguresKernel, Memory
    from cgtool.devices.values import first_bad, values_from, values_of

    torch.manual_seed(0)
    tensors = []
    for dtype in TYPES:
        for count in counts:
            tensor = (torch.randn(count) * 8).to(dtype)
            if count > 9 and (dtype.is_floating_point or dtype.is_complex):
                tensor[count // 2], tensor[count // 3] = float("nan"), float("inf")
            tensors.append(tensor.cuda())
    memory = [Memory(each.data_ptr(), each.nbytes, each.dtype) for each in tensors]
    read = FiguresKernel().read(memory, torch.cuda.current_stream().cuda_stream)
    for tensor, known, figures in zip(tensors, memory, read, strict=True):
        (expected,) = values_of([("out", tensor.cpu())])
        found = values_from(
            figures, "out", tensor.dtype, tuple(tensor.shape), known.bytes // known.word_bytes,
            partial(first_bad, tensor),
        )  # fmt: skip
        for name in expected.__struct_fields__:
            one, other = getattr(expected, name), getattr(found, name)
            same = one == other
            if isinstance(one, float):
                same = math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
            assert same, (tensor.dtype, tensor.shape, name, one, other)


UNMAPPED = """
import torch
from cgtool.devices.cuda.figures import digests
from cgtool.torch_compat.private import storage_at

size = 64 << 20
kept, gone = (torch.ones(size, dtype=torch.uint8, device="cuda") for _ in range(2))
address = gone.data_ptr()
empty = torch.empty(0, dtype=torch.uint8, device="cuda")
same = empty.set_(storage_at(address, gone.device, size), 0, (size,), (1,))
both = digests([kept, same])
del gone
torch.cuda.empty_cache()
print(both[0] is not None and both[0] == both[1], digests([kept, same]) == [both[0], None])
"""


def test_memory_that_is_not_mapped_is_not_read() -> None:
    """An expandable segment gives back the memory, and keeps the addresses."""
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    done = subprocess.run(
        [sys.executable, "-c", UNMAPPED],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.stdout == "True True\n", done.stderr
