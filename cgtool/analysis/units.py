"""Durations, sizes, dimensions, rates and counts as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


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


def bytes_text(value: float | None) -> str:
    """``2.0 MiB``; exact below one KiB."""
    if value is None:
        return "—"
    if value < 1024:
        return f"{value:.0f} B"
    size = float(value)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if round(size) < 1024 or unit == "GiB":
            break
    return f"{size:.1f} {unit}" if size < 100 else f"{size:.0f} {unit}"


def exact_bytes_text(value: float) -> str:
    """``2,097,152``."""
    return f"{value:,.0f}"


def figure_text(value: float | None) -> str:
    """Four digits: ``0.01453``, ``1.2e-07``."""
    return "—" if value is None else f"{value:.4g}"


UNITS = {time_text: "ns", bytes_text: "bytes", exact_bytes_text: "bytes"}
"""The unit of the value that a text is made of."""


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


def dimensions_text(sizes: Sequence[int]) -> str:
    """``16×4`` for a grid or block: without the last sizes that are 1."""
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes = sizes[:-1]
    return "×".join(map(str, sizes))


def count_text(value: int, singular: str, plural: str | None = None) -> str:
    """``1 node``, ``60 nodes``."""
    return f"{value:,} {singular if value == 1 else plural or singular + 's'}"


def share_text(part: int, whole: int) -> str:
    """``100%``, ``97.2% (70/72)``: never rounded up to 100%."""
    if not whole:
        return "—"
    return "100%" if part == whole else f"{int(1000 * part / whole) / 10:.1f}% ({part}/{whole})"


def number_text(value: float) -> str:
    """``1,536``, ``0.25``: a number of no known unit, with at most four digits after a point."""
    return f"{value:,.4f}".rstrip("0").rstrip(".")


def percent_text(share: float | None) -> str:
    """``38%`` for 0.38."""
    return "—" if share is None else f"{share:.0%}"


def extremes(counts: Iterable[int]) -> tuple[int, ...]:
    """The fewest and the most; one number if they are equal."""
    known = set(counts)
    return tuple(sorted({min(known), max(known)})) if known else ()


def total_of(values: Iterable[int | None]) -> int | None:
    """The sum of those that are known; None if none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def types_text(counted: Mapping[str, int]) -> str:
    """``46 kernels, 4 memset``: node types with their counts, most first."""
    ordered = sorted(counted.items(), key=lambda item: -item[1])
    return ", ".join(
        f"{count:,} {name}{'s' if count > 1 and name in ('kernel', 'op') else ''}"
        for name, count in ordered
    )


def names_text(names: Sequence[str], most: int) -> str:
    """``a, b and 3 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
