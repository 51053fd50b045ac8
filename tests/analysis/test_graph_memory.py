"""What one more size would add, against arithmetic by hand."""

from __future__ import annotations

from cgtool.analysis.graph_memory import GraphMemoryRow, estimates

MIB = 1 << 20


def rows(sizes: dict[int, int]) -> list[GraphMemoryRow]:
    """Behind the first size of the pool, which adds 99 MiB."""
    return [
        GraphMemoryRow(number, "engine.py:8", f"batch {size}", "pool 0", 0, None, driver * MIB)
        for number, (size, driver) in enumerate({3: 99, **sizes}.items())
    ]


def test_sizes_on_a_line_are_estimated_exactly() -> None:
    (text,) = estimates(rows({8: 9, 1: 2, 4: 5, 2: 3}))
    assert text == (
        "engine.py:8: one more size between two of 4 would add 2.5 MiB to 7.0 MiB; estimated so "
        "for each of them without itself, off by 0 B in the median, 0 B at most"
    )


def test_the_error_is_that_of_sizes_left_out() -> None:
    # Without 2, a third of the way from 1 to 4: 3, and it has 4. Without 4, from 2 to 8: 5.67.
    (text,) = estimates(rows({1: 2, 2: 4, 4: 5, 8: 9}))
    assert text.endswith("off by 853 KiB in the median, 1.0 MiB at most")


def test_a_size_that_is_captured_in_pieces_adds_all_of_them() -> None:
    whole, pieces = rows({8: 18, 1: 4, 4: 10, 2: 6}), rows({8: 9, 1: 2, 4: 5, 2: 3})
    assert estimates(pieces * 2) == estimates(whole)


def test_few_sizes_say_nothing() -> None:
    assert estimates(rows({1: 2, 2: 3})) == ()
