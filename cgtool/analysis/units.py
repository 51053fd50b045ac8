"""Durations, sizes, rates and counts as text."""

from __future__ import annotations

from collections.abc import Mapping


def time_text(value_ns: float | None) -> str:
    """``28.9 us``, three digits; — when there is none."""
    if value_ns is None:
        return "—"
    value = float(value_ns)
    for unit in ("ns", "us", "ms", "s"):
        if round(value, 1) < 999.5 or unit == "s":
            break
        value /= 1000
    digits = 0 if value >= 100 or unit == "ns" else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {unit}"


__all__ = ["bytes_text", "count_text", "rate_text", "time_text", "types_text"]


def bytes_text(value: int | None) -> str:
    """``2.0 MiB``; exact below one KiB."""
    if value is None:
        return "—"
    if value < 1024:
        return f"{value} B"
    size = float(value)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if round(size) < 1024 or unit == "GiB":
            break
    return f"{size:.1f} {unit}" if size < 100 else f"{size:.0f} {unit}"


def rate_text(value: float | None, unit: str) -> str:
    """``4.2 TB/s``, ``31 GFLOP/s``: powers of 1000, two or three digits."""
    if value is None:
        return "—"
    prefix = ""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if round(value, 1) < 999.5 or prefix == "P":
            break
        value /= 1000
    return f"{value:.0f} {prefix}{unit}" if value >= 10 else f"{value:.1f} {prefix}{unit}"


def count_text(value: int, one: str, many: str | None = None) -> str:
    """``1 node``, ``60 nodes``."""
    return f"{value:,} {one if value == 1 else many or one + 's'}"


def types_text(counted: Mapping[str, int]) -> str:
    """``46 kernels, 4 memset``: node types with their counts, most first."""
    ordered = sorted(counted.items(), key=lambda one: -one[1])
    return ", ".join(
        f"{count:,} {name}{'s' if count > 1 and name in ('kernel', 'op') else ''}"
        for name, count in ordered
    )
