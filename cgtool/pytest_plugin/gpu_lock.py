"""Who may use the GPU now: many captures at once, but whoever measures times is alone.

Under pytest-xdist the tests of one run are several processes. Their captures may run beside each
other; a capture beside a measurement would be measured with it. Two locks in the temporary folder
keep them apart: ``turn`` is passed through in order, so that a measurement that waits is not
overtaken by captures for ever, and ``room`` is held shared or alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cgtool.model.failure import machine


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Beside other captures, and beside no measurement."""
    with _locked("turn", fcntl.LOCK_EX) as turn, _locked("room", fcntl.LOCK_SH):
        fcntl.flock(turn, fcntl.LOCK_UN)
        yield


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Beside nothing else of this user's that takes turns."""
    with _locked("turn", fcntl.LOCK_EX) as turn, _locked("room", fcntl.LOCK_EX):
        fcntl.flock(turn, fcntl.LOCK_UN)
        yield


@contextlib.contextmanager
def _locked(name: str, how: int) -> Iterator[int]:
    path = Path(tempfile.gettempdir()) / f"cgtool-{os.getuid()}-{name}.lock"
    try:
        # In a folder that all may write to, a link would lead us to open what another chose.
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise machine(
            f"cannot open {path}, by which tests take turns on the GPU: {error.strerror}"
        ) from error
    try:
        fcntl.flock(handle, how)
        yield handle
    finally:
        os.close(handle)
