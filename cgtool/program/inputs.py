"""``--input`` and ``--seed``: the tensors and numbers to pass, and the random states."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Any

import torch

from cgtool.model.failure import usage
from cgtool.program.boundary import first_line
from cgtool.program.grammar import InputSpec, render

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""

DEFAULT_BELOW = 100
"""Random integers without ``?int<`` stay below this: they are often indices."""


def _fill(spec: InputSpec, device: str, generator: torch.Generator | None) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if spec.fill == "zeros":
        return torch.zeros(spec.shape, dtype=dtype, device=device)
    if spec.fill == "ones":
        return torch.ones(spec.shape, dtype=dtype, device=device)
    if dtype.is_complex:
        drawn = torch.complex64 if dtype.itemsize <= 8 else dtype
        return torch.randn(spec.shape, dtype=drawn, device=device, generator=generator).to(dtype)
    if dtype.is_floating_point:
        # torch.randn has no 8-bit dtypes.
        drawn = torch.float32 if dtype.itemsize == 1 else dtype
        return torch.randn(spec.shape, dtype=drawn, device=device, generator=generator).to(dtype)
    below = spec.below or (2 if dtype is torch.bool else DEFAULT_BELOW)
    return torch.randint(0, below, spec.shape, device=device, generator=generator).to(dtype)


def make(spec: InputSpec, device: str, generator: torch.Generator | None = None) -> Any:
    """A tensor on ``device``, or the Python number.

    Raises CgtoolError (exit 2) when the device has no memory for it or does not support the dtype.
    """
    if spec.scalar is not None:
        return spec.scalar
    try:
        return _fill(spec, device, generator).requires_grad_(spec.grad)
    except (RuntimeError, TypeError, AttributeError, MemoryError) as error:
        raise usage(
            f"--input {render(spec)!r} cannot be created on {device}", why=first_line(error)
        ) from error


def make_all(specs: Sequence[InputSpec], device: str) -> Arguments:
    """Arguments for one call: positions first, names after."""
    positional = [spec for spec in specs if spec.name.isdigit()]
    return (
        tuple(make(spec, device) for spec in sorted(positional, key=lambda spec: int(spec.name))),
        {spec.name: make(spec, device) for spec in specs if not spec.name.isdigit()},
    )


def seed_all(seed: int | None) -> None:
    """Seed Python, NumPy when it is loaded, and PyTorch on every device; None leaves them alone.

    Raises CgtoolError (exit 2) for a number that torch.manual_seed does not accept.
    """
    if seed is None:
        return
    try:
        torch.manual_seed(seed)
    except (RuntimeError, OverflowError, ValueError) as error:
        raise usage(f"--seed {seed} is not a seed that torch.manual_seed accepts") from error
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
