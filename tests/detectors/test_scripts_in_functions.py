"""The code of a script in one function, in a thread or in a coroutine gets the same verdict."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from tests.detectors.in_functions import WAYS, in_function
from tests.detectors.scripts import check, marks
from tests.forked_workers import in_fork

_SCRIPTS = [
    path
    for kind in ("innocent", "guilty")
    for path in sorted((Path(__file__).parent / kind).glob("*.py"))
    if in_function(path.read_text(), "called") is not None
]


# All take several minutes. Which are chosen does not depend on what others there are.
_CHOSEN = [path for path in _SCRIPTS if zlib.crc32(path.stem.encode()) % 16 == 0]
_CHOSEN += [path for path in _SCRIPTS if path.stem in ("kept_by_name",)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("path", _CHOSEN, ids=lambda path: path.stem)
def test_the_verdict_is_the_same(path: Path, way: str, tmp_path: Path) -> None:
    source = in_function(path.read_text(), way)
    assert source is not None
    moved = tmp_path / path.name
    moved.write_text(source)
    outcome = in_fork(check, moved, timeout=120)
    assert outcome.findings == marks(source), outcome.reasons
