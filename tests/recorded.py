"""Captures of a GPU as if they had been recorded from this checkout, whose sources they show."""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

from cgtool.model.capture import Capture
from cgtool.model.capture_file import read

ROOT = Path(__file__).resolve().parent.parent


def recorded(name: str) -> Capture:
    """``samples/captures/NAME.cgt``, with the files of its frames in this checkout."""
    capture = read(ROOT / "samples" / "captures" / f"{name}.cgt")
    file, spec = capture.entry.file or "", capture.entry.spec.partition(":")[0]
    there = file.removesuffix(spec)
    frames = tuple(
        structs.replace(frame, file=str(ROOT / frame.file.removeprefix(there)))
        if frame.file.startswith(there)
        else frame
        for frame in capture.frames
    )
    return structs.replace(capture, frames=frames)
