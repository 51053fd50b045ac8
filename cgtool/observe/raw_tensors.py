"""Tensors as memory: copied, written and compared without autograd, recorders or a simulation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import torch

from cgtool.observe.tensors import is_emptied, strided_parts
from cgtool.torch_compat.op_key import unintercepted, unobserved
from cgtool.torch_compat.private import disable_current_modes, no_torch_function

Key = TypeVar("Key")


@contextlib.contextmanager
def raw() -> Iterator[None]:
    """Read and write tensors directly: without autograd and recorders."""
    with disable_current_modes(), unobserved(), torch.inference_mode(), no_torch_function():
        yield


@contextlib.contextmanager
def arithmetic() -> Iterator[None]:
    """Compute with tensors directly: ``raw``, also without the simulated device, so that no op may
    name a device."""
    with raw(), unintercepted():
        yield


def copies(tensors: Mapping[Key, torch.Tensor]) -> dict[Key, torch.Tensor]:
    """Copies that the next run does not overwrite."""
    with raw():
        return {key: held(tensor.detach()).clone() for key, tensor in tensors.items()}


def bytes_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    """A copy of all of the memory that a tensor is in."""
    storage: Any = tensor.untyped_storage()
    copy: torch.UntypedStorage = storage.clone()
    return copy


def held(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that can be read: without elements if the program has given its memory back."""
    return tensor.new_empty(0) if is_emptied(tensor) else tensor


def write(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Write values into the memory of a tensor, unless the program has given it back, now or when
    they were copied. Elements that share memory are written once."""
    with raw():
        if is_emptied(tensor) or (tensor.numel() and not values.numel()):
            return
        if tensor.layout != torch.strided:
            pairs = list(zip(strided_parts(tensor), strided_parts(values), strict=True))
            if all(part.shape == value.shape for (_, part), (_, value) in pairs):
                # `copy_` of a sparse tensor gives it new memory.
                for (_, part), (_, value) in pairs:
                    part.copy_(value)
            else:
                tensor.copy_(values)
            return
        target = _distinct(tensor)
        for dimension, size in enumerate(target.shape):
            values = values.narrow(dimension, 0, size)
        target.copy_(values)


def _distinct(tensor: torch.Tensor) -> torch.Tensor:
    """A view of the elements that do not share memory by a stride of 0."""
    view = tensor.detach()
    for dimension, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dimension] > 1:
            view = view.narrow(dimension, 0, 1)
    return view


# --- bits


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a tensor of any layout, as a contiguous strided tensor."""
    tensor = held(tensor)
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    return tensor.resolve_conj().resolve_neg().contiguous()


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """True when no bit of two dense tensors differs."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if left.numel() == 0 or left.is_meta:
        return True
    # The stride of a single element can be any number, and view wants 1.
    left, right = (each.reshape(-1).as_strided((each.numel(),), (1,)) for each in (left, right))
    return bool(torch.equal(left.view(torch.uint8), right.view(torch.uint8)))


def unchanged(before: torch.Tensor, now: torch.Tensor) -> bool:
    """True when no bit differs; the two may be on different devices."""
    with raw():
        now = held(now.detach())
        if before.shape != now.shape:
            return False
        before = before.to(now.device)
    with arithmetic():
        return same_bits(dense(before), dense(now))


def has_nan(tensor: torch.Tensor) -> bool:
    packed = tensor.dtype == getattr(torch, "float4_e2m1fn_x2", None)
    if packed or not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    with arithmetic():
        values = dense(tensor)
        # For types of one byte there are few kernels.
        return bool((values.float() if values.element_size() == 1 else values).isnan().any())


def is_finite(tensor: torch.Tensor) -> bool:
    """True without a NaN or an infinity."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    with arithmetic():
        return bool(dense(tensor).isfinite().all())


# --- a sentinel, to see what is written or read

UNUSUAL = 0xA5
"""A byte of which hardly a result is made; no NaN in any type."""


def spoil(tensor: torch.Tensor) -> None:
    """Fill it with ``UNUSUAL`` bytes; not a quantized one, whose numbers are behind a scale."""
    with raw():
        if tensor.is_quantized:
            return
        if tensor.dtype == getattr(torch, "float4_e2m1fn_x2", None):
            tensor = tensor.view(torch.uint8)
        number = torch.full((tensor.element_size(),), UNUSUAL, dtype=torch.uint8, device="cpu")
        _distinct(tensor).fill_(number.view(tensor.dtype).item())


def _sentinel(tensor: torch.Tensor) -> float | bool | None:
    """NaN or the smallest number, which a replay is unlikely to write; None for quantized types."""
    if tensor.is_floating_point() or tensor.is_complex():
        return float("nan")
    if tensor.dtype == torch.bool:
        return True
    return None if tensor.is_quantized else torch.iinfo(tensor.dtype).min


def fill_sentinel(tensor: torch.Tensor) -> None:
    if (sentinel := _sentinel(tensor)) is not None and not is_emptied(tensor):
        _distinct(tensor).fill_(sentinel)


def holds_sentinel(tensor: torch.Tensor) -> bool:
    """True when every element is the sentinel, and not by chance."""
    with raw():
        tensor, sentinel = held(tensor), _sentinel(tensor)
        if not tensor.numel() or tensor.dtype in (torch.bool, torch.uint8) or sentinel is None:
            return False
        is_nan = sentinel != sentinel
        return bool((tensor.isnan() if is_nan else tensor == sentinel).all())


def holds_byte(tensor: torch.Tensor, byte: int) -> bool:
    """True when each byte of a tensor is this one."""
    with raw():
        tensor = held(tensor.detach())
    with arithmetic():
        data = dense(tensor).reshape(-1)
        return bool(data.numel()) and bool((data.view(torch.uint8) == byte).all())
