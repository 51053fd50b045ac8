"""Which tensors are on the GPU and which are on the host, on a real or on the simulated device.

On the simulated device all of them are CPU tensors. A tensor that was made without a ``cuda``
device, or computed only from such tensors, is marked as on the host; a pinned one as pinned. A
tensor without a mark counts as on the GPU: a mark that got lost (on a Parameter, on a view that
autograd made) can hide a mistake, but never invents one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

DEVICE, HOST, PINNED = "device", "host", "pinned"
_MARK = "_simulated_place"


def _by_mark(tensor: torch.Tensor) -> str:
    return str(getattr(tensor, _MARK, DEVICE))


def _really(tensor: torch.Tensor) -> str:
    if tensor.is_cuda:
        return DEVICE
    return PINNED if tensor.device.type == "cpu" and tensor.is_pinned() else HOST


_place = _by_mark


def place_of(tensor: torch.Tensor) -> str:
    """``device``, ``host`` or ``pinned``."""
    return _place(tensor)


@contextlib.contextmanager
def real() -> Iterator[None]:
    """While entered, tensors report their real place: on a machine with a GPU."""
    global _place
    before, _place = _place, _really
    try:
        yield
    finally:
        _place = before


def put(tensor: torch.Tensor, place: str) -> None:
    """Mark a new tensor."""
    if place == DEVICE:
        tensor.__dict__.pop(_MARK, None)
    else:
        tensor.__dict__[_MARK] = place


def on_host(tensor: torch.Tensor) -> bool:
    return place_of(tensor) != DEVICE


def is_cuda_device(value: Any) -> bool:
    """True for what names a GPU as an argument: ``"cuda:0"``, ``torch.device("cuda")``."""
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))


def is_cpu_device(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cpu"
    return isinstance(value, str) and (value == "cpu" or value.startswith("cpu:"))


def tensors_of(arguments: Any, depth: int = 2) -> Iterator[torch.Tensor]:
    """Tensors among arguments, and in lists among them down to ``depth``."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            yield argument
        elif depth and isinstance(argument, (list, tuple)):
            yield from tensors_of(argument, depth - 1)
