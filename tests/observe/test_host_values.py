"""How values of the host are shown."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgtool.observe.host_values import number_text, texts_of


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.1 * 0.1, "0.01"), (0.19, "0.19"), (2 / 3, "0.6666666667"), (1e300, "1e+300"), (3.0, "3.0"),
     (math.inf, "inf")],
)  # fmt: skip
def test_a_number_has_no_digits_that_rounding_has_left(number, text):
    assert number_text(number) == text


@given(st.floats(), st.floats())
def test_numbers_that_differ_look_different(before, after):
    texts = texts_of(before, after)
    assert (repr(before) == repr(after)) == (texts[0] == texts[1])
