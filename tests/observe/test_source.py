"""Reading source files as trees."""

import ast
import gc
from pathlib import Path
from typing import Any

import pytest

from cgtool.observe.source import tree_of


def test_a_finalizer_may_read_another_file_meanwhile(tmp_path: Path) -> None:
    file = tmp_path / "long.py"
    file.write_text("x = [1, (2, 3), {4: 5}]\n" * 500)
    calls: list[str] = []

    def on_collection(phase: str, _info: dict[str, Any]) -> None:
        calls.append(phase)
        ast.parse("x = 1")

    thresholds = gc.get_threshold()
    gc.callbacks.append(on_collection)
    gc.set_threshold(10)
    try:
        tree = tree_of(str(file))
        is_on = gc.isenabled()
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(on_collection)
    assert len(tree.body) == 500
    assert is_on
    assert calls


@pytest.mark.parametrize("text", ["def f(:", "x = '\0'", "(" * 10_000])
def test_what_is_no_python_is_empty(text: str, tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text(text)
    assert tree_of(str(file)).body == []
