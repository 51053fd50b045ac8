"""Captures of a GPU."""

from __future__ import annotations

from pathlib import Path

from cgtool.model.capture import Capture
from cgtool.model.capture_file import read

ROOT = Path(__file__).resolve().parent.parent


def recorded(name: str) -> Capture:
    """``samples/captures/NAME.cgt``."""
    return read(ROOT / "samples" / "captures" / f"{name}.cgt")
