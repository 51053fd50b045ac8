"""The handles of CUDA libraries, which PyTorch creates at the first use in a thread.

To create one allocates memory of the device, which is not permitted when a stream is capturing. A
thread that ends leaves its handles to others; the backward of a script runs on a thread of
autograd's, which lives on (aten/src/ATen/cuda/detail/DeviceThreadHandles.h).
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from cgtool.observe.tensors import listed_tensors
from cgtool.torch_compat.dispatch_keys import Args
from cgtool.torch_compat.private import running_autograd_node

CUBLAS, CUDNN = "the cuBLAS library", "the cuDNN library"
_OF_CUBLAS = frozenset(
    (
        "aten::mm", "aten::addmm", "aten::addmm_", "aten::_addmm_activation", "aten::bmm",
        "aten::baddbmm", "aten::baddbmm_", "aten::addmv", "aten::addmv_", "aten::dot",
        "aten::vdot", "aten::mv", "aten::addbmm", "aten::_int_mm", "aten::_scaled_mm",
    )
)  # fmt: skip
"""The ops that native/cuda/Blas.cpp implements; all other products call these."""
_CONVOLUTIONS = frozenset(("aten::convolution", "aten::convolution_backward"))
_AUTOGRAD = "autograd"


def library_of(name: str, args: Args) -> str | None:
    """The library that an op calls on a GPU, for those that have a handle."""
    name = name.partition(".")[0]
    if name in _OF_CUBLAS:
        # Without elements nothing is called.
        return CUBLAS if all(each.numel() for each in listed_tensors(args)) else None
    if name not in _CONVOLUTIONS:
        return None
    weight = args[2 if name.endswith("backward") else 1]
    # Kernels of PyTorch's own for depthwise convolutions in single precision.
    is_depthwise = weight.dim() == 4 and weight.shape[1] == 1 and weight.dtype == torch.float32
    if is_depthwise and weight.shape[0] > 1:
        return None
    return CUDNN if torch.backends.cudnn.enabled else CUBLAS


class Handles:
    """Which threads have handles."""

    def __init__(self) -> None:
        self._of: dict[str, set[Any]] = {}
        """By library: the threads, by identity."""
        self._ran: set[tuple[Any, str]] = set()
        """Ops that ran outside captures, each with its thread."""

    def has(self, library: str) -> bool:
        """Whether this thread has one, or one is free."""
        owners, thread = self._of.get(library, set()), _thread()
        if thread in owners:
            return True
        alive = {each.ident for each in threading.enumerate()} | {_AUTOGRAD}
        ended = next((each for each in owners if each not in alive), None)
        if ended is not None:
            owners.remove(ended)
            owners.add(thread)
        return ended is not None

    def note_op(self, name: str) -> None:
        """An op runs outside a capture. What it calls in its kernel is not seen there, and has
        handles from now on."""
        self._ran.add((_thread(), name.partition(".")[0]))

    def has_run(self, name: str) -> bool:
        """Whether an op has run outside a capture, in this thread."""
        return (_thread(), name.partition(".")[0]) in self._ran

    def create(self, library: str) -> None:
        """In this thread."""
        self._of.setdefault(library, set()).add(_thread())


def in_backward() -> bool:
    """Whether this thread would be one of autograd's on a GPU."""
    return running_autograd_node() is not None


def _thread() -> Any:
    return _AUTOGRAD if in_backward() else threading.get_ident()
