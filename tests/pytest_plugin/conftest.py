"""Workers of the plugin are forked: each test of a small project starts several."""

from __future__ import annotations

import pytest

from tests.forked_workers import workers  # noqa: F401


@pytest.fixture(autouse=True)
def _forked(workers: None) -> None:  # noqa: F811
    """Workers of the plugin in this process are forked."""
