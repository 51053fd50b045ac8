"""Files of a user's, each test in a folder and an import state of its own."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cgtool.model.failure import CgtoolError, Failure
from cgtool.program.load import load
from cgtool.program.workload import Workload


@pytest.fixture(autouse=True)
def _import_state() -> Iterator[None]:
    path, finders, modules = list(sys.path), list(sys.meta_path), dict(sys.modules)
    argv = sys.argv
    yield
    sys.argv = argv
    sys.path[:], sys.meta_path[:] = path, finders
    for name in set(sys.modules) - set(modules):
        file = getattr(sys.modules[name], "__file__", None)
        # Libraries that were imported on the way stay: torch does not survive a second import.
        if file is None or "-packages" not in file:
            del sys.modules[name]


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """``write(text, "name.py")`` under the test's folder; ``import torch`` comes first."""

    def write(text: str, name: str = "model.py", *, bare: bool = False) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        head = "" if bare else "import torch\nfrom torch import nn\n"
        path.write_text(head + textwrap.dedent(text))
        return path

    return write


@pytest.fixture
def numbered(write: Write) -> Callable[[str], Path]:
    """A file a text: one that was run is not run again, so texts must not share a path."""
    texts: list[str] = []

    def numbered(text: str) -> Path:
        if text not in texts:
            texts.append(text)
        return write(text, f"model_{texts.index(text)}.py")

    return numbered


@pytest.fixture
def loaded(numbered: Callable[[str], Path]) -> Callable[..., Workload]:
    """``loaded(text, "name", *inputs)``: the workload of a file with this text."""

    def loaded(text: str, name: str = "build", *inputs: str, seed: int | None = None) -> Workload:
        return load(f"{numbered(text)}:{name}", device="cpu", inputs=inputs, seed=seed)

    return loaded


@pytest.fixture
def refused(numbered: Callable[[str], Path]) -> Callable[..., Failure]:
    """Like ``loaded``, for what must fail: the failure."""

    def refused(text: str, name: str = "build", *inputs: str) -> Failure:
        with pytest.raises(CgtoolError) as caught:
            load(f"{numbered(text)}:{name}", device="cpu", inputs=inputs)
        return caught.value.failure

    return refused
