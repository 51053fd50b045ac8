"""A duration for people, in tables and in sentences."""

from __future__ import annotations


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
