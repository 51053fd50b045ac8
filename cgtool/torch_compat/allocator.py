"""What PyTorch's allocators can list, and what a capture permits them."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch


def lists_memory() -> bool:
    """False for ``backend:cudaMallocAsync``, whose pools are managed by the driver, and for an
    allocator of the user's (``CUDAPluggableAllocator``)."""
    return bool(torch.cuda.memory.get_allocator_backend() == "native")


def memory_segments() -> list[dict[str, Any]]:
    """``torch.cuda.memory_snapshot()``; nothing where that raises."""
    return list(torch.cuda.memory_snapshot()) if lists_memory() else []


@functools.cache
def pins_in_captures() -> bool:
    """Whether a capture may allocate pinned memory (PyTorch 2.11; pull request 167507): since then
    graphs have pools of it, for which ``torch.cuda.graph`` empties the cache of other memory."""
    return "_host_emptyCache" in inspect.getsource(torch.cuda.graphs)
