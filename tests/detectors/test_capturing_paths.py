"""Code that asks whether a stream is capturing: found where its capture computes something else."""

from __future__ import annotations

import pytest

from tests.detectors import asking_code
from tests.detectors.test_host_state import cases_of, hazards, marks_of


@pytest.mark.parametrize("name", cases_of(asking_code))
def test_capture_and_eager_are_compared(name: str) -> None:
    assert hazards(asking_code, name) == marks_of(asking_code, set(), name)
