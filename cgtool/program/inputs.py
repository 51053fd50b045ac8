"""What ``--input`` and ``--seed`` stand for: tensors, numbers and random states."""

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
        made = torch.complex64 if dtype.itemsize <= 8 else dtype
        return torch.randn(spec.shape, dtype=made, device=device, generator=generator).to(dtype)
    if dtype.is_floating_point:
        # The 8-bit dtypes have no random numbers of their own.
        made = torch.float32 if dtype.itemsize == 1 else dtype
        return torch.randn(spec.shape, dtype=made, device=device, generator=generator).to(dtype)
    below = spec.below or (2 if dtype is torch.bool else DEFAULT_BELOW)
    return torch.randint(0, below, spec.shape, device=device, generator=generator).to(dtype)


def make(spec: InputSpec, device: str, generator: torch.Generator | None = None) -> Any:
    """A tensor on ``device``, or the Python number.

    Raises CgtoolError (exit 2) when the device has no room for it or does not know the dtype.
    """
    if spec.scalar is not None:
        return spec.scalar
    try:
        return _fill(spec, device, generator).requires_grad_(spec.grad)
    except (RuntimeError, TypeError, AttributeError, MemoryError) as error:
        raise usage(
            f"--input {render(spec)!r} cannot be made on {device}", why=first_line(error)
        ) from error


def make_all(specs: Sequence[InputSpec], device: str) -> Arguments:
    """Arguments for one call: positions first, names after."""
    positions = sorted((one for one in specs if one.name.isdigit()), key=lambda one: int(one.name))
    named = [one for one in specs if not one.name.isdigit()]
    return (
        tuple(make(one, device) for one in positions),
        {one.name: make(one, device) for one in named},
    )


def seed_all(seed: int | None) -> None:
    """Seed Python, NumPy when it is loaded, and PyTorch on every device; None leaves them alone.

    Raises CgtoolError (exit 2) for a number that is no seed.
    """
    if seed is None:
        return
    try:
        torch.manual_seed(seed)
    except (RuntimeError, OverflowError, ValueError) as error:
        raise usage(f"--seed {seed} is no seed that torch.manual_seed takes") from error
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
