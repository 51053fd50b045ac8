"""What every file that is refused has in common."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from cgtool.model.failure import CgtoolError


def refuse(
    read: Callable[[Path], object], path: Path, *words: str, peak_bytes: float, longest: int = 5000
) -> None:
    """Refused: exit 2, one sentence with the file's name and these words, and no big memory."""
    tracemalloc.start()
    try:
        with pytest.raises(CgtoolError) as caught:
            read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    failure = caught.value.failure
    assert failure.exit_code == 2
    assert str(path) in failure.message
    assert "\n" not in failure.message
    assert len(failure.message) < longest + len(str(path))
    for word in words:
        assert word in failure.message
    assert peak < peak_bytes
