"""DOT text to SVG or PNG: the system's Graphviz when there is one, else the pip-installed one."""

from __future__ import annotations

import contextlib
import importlib
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import graphviz

from cgtool.model.failure import machine, usage

SECONDS = 120
PIP_PROGRAM = "graphviz-pure"


def engine() -> Path | None:
    """The program to lay out with: ``dot`` on the PATH, else the one of the graphviz-pure
    package, which lies beside the running Python."""
    found = shutil.which("dot")
    if found is not None:
        return Path(found)
    beside = Path(sys.executable).parent / PIP_PROGRAM
    if beside.exists():
        return beside
    found = shutil.which(PIP_PROGRAM)
    return Path(found) if found else None


@contextlib.contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in the main thread after ``seconds``."""

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def render(text: str, kind: str) -> bytes:
    """Lay the graph out as ``svg`` or ``png``.

    Raises CgtoolError: exit 3 without any layout program, 2 when it fails or takes too long.
    """
    program = engine()
    if program is None:
        raise machine(
            f"no Graphviz to lay out the {kind.upper()}",
            fix="pip install graphviz-pure, or install Graphviz; --dot needs neither",
        )
    # The graphviz package runs what this name says.
    backend: Any = importlib.import_module("graphviz.backend.dot_command")
    backend.DOT_BINARY = program
    source = graphviz.Source(text)
    try:
        with _at_most(SECONDS):
            picture: bytes = source.pipe(format=kind, engine="dot", quiet=True)
            return picture
    except TimeoutError:
        raise usage(
            f"the layout took more than {SECONDS} s",
            fix="draw less: --collapse 1, or --select 'module=layers.0.*'",
        ) from None
    except (graphviz.CalledProcessError, graphviz.ExecutableNotFound) as error:
        said = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()
        reason = said.splitlines()[0] if said else str(error)
        raise usage(
            f"{program.name} could not lay the graph out: {reason}",
            fix="draw less: --collapse 1; or take the text with --dot",
        ) from error
