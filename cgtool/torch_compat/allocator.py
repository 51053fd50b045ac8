"""What PyTorch's allocator can list."""

from __future__ import annotations

from typing import Any

import torch


def lists_memory() -> bool:
    """False for ``backend:cudaMallocAsync``, whose pools are managed by the driver, and for an
    allocator of the user's (``CUDAPluggableAllocator``)."""
    return bool(torch.cuda.memory.get_allocator_backend() == "native")


def memory_segments() -> list[dict[str, Any]]:
    """``torch.cuda.memory_snapshot()``; nothing where that raises."""
    return list(torch.cuda.memory_snapshot()) if lists_memory() else []
