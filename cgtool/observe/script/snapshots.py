"""What a tensor was before a replay, to see whether the replay has changed it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cgtool.observe.tensors import key_of
from cgtool.torch_compat.op_key import unobserved
from cgtool.torch_compat.private import no_torch_function
from cgtool.torch_compat.weak import Weak

_BYTES = 1 << 25
"""Larger tensors are not copied."""


@dataclass(frozen=True)
class Snapshot:
    """A tensor, which it does not keep alive, and a copy of its values."""

    tensor: Weak[torch.Tensor]
    key: int
    """Of its storage."""
    values: torch.Tensor

    def is_changed(self) -> bool:
        """Whether the tensor has other values now; False if it is gone, or cannot be read."""
        now = self.tensor()
        if now is None:
            return False
        values = _values(now)
        if values is None or values.shape != self.values.shape:
            return False
        try:
            with unobserved(), no_torch_function(), torch.no_grad():
                same = torch.isclose(values, self.values, rtol=0, atol=0, equal_nan=True)
                return not bool(same.all())
        except (RuntimeError, NotImplementedError):
            # Of a type that PyTorch does not compare.
            return False

    def overlaps(self, other: torch.Tensor) -> bool:
        """Whether another tensor has some of the same memory."""
        tensor = self.tensor()
        if tensor is None:
            return False
        return overlap(tensor, other)


def overlap(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have some of the same memory."""
    first, last = _range(tensor)
    start, end = _range(other)
    return first < end and start < last


class Snapshots:
    """Those of one moment: tensors with the same memory share a copy."""

    def __init__(self) -> None:
        self._copies: dict[tuple[object, ...], torch.Tensor | None] = {}

    def of(self, tensor: torch.Tensor) -> Snapshot | None:
        """None for one that is too large, or cannot be read."""
        key = key_of(tensor)
        if key is None or tensor.layout != torch.strided:
            return None
        layout = tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
        if layout not in self._copies:
            is_large = tensor.numel() * tensor.element_size() > _BYTES
            self._copies[layout] = None if is_large else _values(tensor)
        values = self._copies[layout]
        return None if values is None else Snapshot(Weak(tensor), key, values)


def _values(tensor: torch.Tensor) -> torch.Tensor | None:
    """A copy on the host."""
    try:
        with unobserved(), no_torch_function(), torch.no_grad():
            return tensor.detach().to("cpu", copy=True)
    except (RuntimeError, NotImplementedError):
        return None


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    """The first address of a tensor, and the one behind the last."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    span = sum((size - 1) * stride for size, stride in sizes) + 1
    return tensor.data_ptr(), tensor.data_ptr() + span * tensor.element_size()
