from __future__ import annotations

from collections.abc import Iterator

import pytest

from cgtool.torch_compat.patches import Patches


@pytest.fixture
def patches() -> Iterator[Patches]:
    with Patches() as patches:
        yield patches
