"""Compare with files in tests/gold; ``UPDATE_GOLD=1 pytest`` rewrites them; read the diff."""

from __future__ import annotations

import os
from pathlib import Path

GOLD = Path(__file__).parent / "gold"


def check(name: str, text: str) -> None:
    """The text equals the gold file of that name."""
    path = GOLD / name
    if os.environ.get("UPDATE_GOLD"):
        path.write_text(text)
    assert text == path.read_text(), (
        f"tests/gold/{name} differs: UPDATE_GOLD=1 pytest writes it again"
    )
