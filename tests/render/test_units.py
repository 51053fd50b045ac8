"""Numbers for people keep their size at the edge of a unit."""

from __future__ import annotations

import pytest

from cgtool.analysis.units import bytes_text, time_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1023 << 10, "1023 KiB"),
        ((1 << 20) - 1, "1.0 MiB"),
        ((1 << 30) - 1, "1.0 GiB"),
        (None, "—"),
    ],
)
def test_bytes(value, text):
    assert bytes_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(999, "999 ns"), (999.6, "1.00 us"), (999_960, "1.00 ms"), (28_900, "28.9 us"), (None, "—")],
)
def test_times(value, text):
    assert time_text(value) == text
