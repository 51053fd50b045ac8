"""A difference from eager is reported if it is there in each of several tries."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cgtool.jobs.verify.divergence import Divergence, Parting
from cgtool.jobs.verify.evidence import Trial

NOISY, OTHER_PATH = Parting("aten::mm", "1 of 4 numbers differs"), Parting(None, "", only_one=True)


class _Tried(Divergence):
    """Has these results, one for each try."""

    def __init__(self, results: Sequence[Parting | None]) -> None:
        self._results = list(results)

    def _find(self, *_args: object) -> Parting | None:
        return self._results.pop(0)


@pytest.mark.parametrize(
    ("results", "found"),
    [
        ([None], None),
        ([NOISY, None], None),
        ([NOISY, NOISY, NOISY, None], None),
        ([NOISY] * 4, NOISY),
        ([OTHER_PATH], OTHER_PATH),
    ],
)
def test_noise_is_not_there_in_each_try(
    results: Sequence[Parting | None], found: Parting | None
) -> None:
    assert _Tried(results).find(Trial("one"), 0, None) is found
