"""Segments are listed only where PyTorch's allocator can list them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import cgtool
from cgtool.torch_compat.allocator import memory_segments


@pytest.mark.parametrize("backend", ["cudaMallocAsync", "pluggable"])
def test_an_allocator_that_lists_nothing_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    def refuse(_pool: object = None, **_options: bool) -> None:
        raise RuntimeError("Calling snapshot with backend:cudaMallocAsync is not meaningful.")

    monkeypatch.setattr(torch.cuda.memory, "get_allocator_backend", lambda: backend)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", refuse)
    assert list(memory_segments()) == []
    monkeypatch.setattr(torch.cuda.memory, "get_allocator_backend", lambda: "native")
    with pytest.raises(RuntimeError):
        memory_segments()


def test_nothing_else_asks_for_the_segments() -> None:
    root = Path(cgtool.__file__).parent
    callers = [
        str(file.relative_to(root))
        for file in root.rglob("*.py")
        if re.search(r"[^`]torch\.cuda\.memory_snapshot\((?!self)", file.read_text())
    ]
    assert callers == ["torch_compat/allocator.py"]
