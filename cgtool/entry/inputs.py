"""Make the inputs that ``--input`` describes."""

from __future__ import annotations

from typing import Any

import torch

from cgtool.entry.grammar import InputSpec


def make(spec: InputSpec, device: str) -> Any:
    """A tensor on ``device``, or the Python number."""
    if spec.scalar is not None:
        return spec.scalar
    dtype: torch.dtype = getattr(torch, spec.dtype)
    shape = spec.shape
    if spec.fill == "zeros":
        tensor = torch.zeros(shape, dtype=dtype, device=device)
    elif spec.fill == "ones":
        tensor = torch.ones(shape, dtype=dtype, device=device)
    elif dtype.is_floating_point or dtype.is_complex:
        tensor = torch.randn(shape, dtype=dtype, device=device)
    else:
        below = spec.below or (2 if dtype is torch.bool else 100)
        tensor = torch.randint(0, below, shape, device=device).to(dtype)
    return tensor.requires_grad_(spec.grad)
