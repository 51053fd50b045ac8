"""Callbacks at the import of a module."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from cgtool.torch_compat.imports import after_import


def test_several_wait_for_one_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "awaited_module.py").write_text("value = 3")
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    calls: list[str] = []

    def note(name: str, module: ModuleType) -> None:
        assert type(module.__loader__).__module__ != "cgtool.torch_compat.imports"
        calls.append(f"{name} {module.value}")

    after_import("awaited_module", lambda module: note("first", module))
    stop = after_import("awaited_module", lambda module: note("stopped", module))
    after_import("awaited_module", lambda module: note("last", module))
    stop()
    # To look for it is not to import it.
    assert importlib.util.find_spec("awaited_module") is not None
    assert calls == []
    importlib.import_module("awaited_module")
    assert sorted(calls) == ["first 3", "last 3"]
    assert sys.meta_path == before
    after_import("awaited_module", lambda module: note("now", module))
    assert calls[-1] == "now 3"
    del sys.modules["awaited_module"]
