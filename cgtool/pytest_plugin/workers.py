"""The worker processes of one test, and the locks by which tests share a GPU.

Many captures may run at once, but a measurement of times runs alone. Under pytest-xdist the tests
of one run are several processes, so two locks in the temporary folder keep them apart: ``turn`` is
passed through in order, so that captures do not overtake a waiting measurement for ever, and
``room`` is shared by captures and exclusive for a measurement.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from cgtool.analysis.gate.evidence import Measured
from cgtool.analysis.gate.measured import measure
from cgtool.cli.workers import Measuring
from cgtool.model.capture import Capture
from cgtool.model.failure import machine
from cgtool.model.finding import Report
from cgtool.model.options import VerifyOptions

T = TypeVar("T", Capture, Report)


class NamedEntry(NamedTuple):
    """One entry point."""

    spec: str
    """For the worker: files by their full path."""
    name: str
    """For messages and baselines: files from pytest's root, the same on every machine."""


@dataclass
class Workers(Measuring):
    """Measures one entry. What was measured for the test before is used again."""

    entry: NamedEntry = field(kw_only=True)
    times: bool = field(kw_only=True)
    """False: no replay is timed."""
    reports: dict[str, Report] = field(default_factory=dict)
    _captures: list[Capture] = field(default_factory=list)
    _benches: list[Capture] = field(default_factory=list)
    _used: Counter[str] = field(default_factory=Counter)
    """How many of each the present gate has used."""

    def begin(self) -> None:
        """Another gate, which may use again what was measured for the last."""
        self._used.clear()

    def measured(self) -> Measured:
        """All figures so far."""
        return measure(self._benches or self._captures, tuple(self.reports.values()))

    # --- for a gate; named after the entry as a test names it, which is not the worker's ``spec``

    def capture(self, spec: str) -> Capture:
        """Raises CgtoolError."""
        if self._is_next("capture", self._captures):
            with self._gpu_lock():
                self._captures.append(self._named(super().capture(self.entry.spec)))
        return self._captures[self._used["capture"] - 1]

    def bench(self, spec: str) -> Capture:
        """One run. Raises CgtoolError (exit 3) where times are off, or there is no GPU."""
        if not self.times:
            raise machine("--cudagraph-no-times was given")
        if self._is_next("bench", self._benches):
            with gpu_alone():
                self._benches.append(self._named(super().bench(self.entry.spec)))
        return self._benches[self._used["bench"] - 1]

    def _is_next(self, kind: str, known: list[Capture]) -> bool:
        """Whether the next one is still to be measured."""
        self._used[kind] += 1
        return self._used[kind] > len(known)

    def check(self, spec: str) -> Report:
        """Raises CgtoolError."""
        if "check" not in self.reports:
            with self._gpu_lock():
                self.reports["check"] = self._named(super().check(self.entry.spec))
        return self.reports["check"]

    def verify(self, spec: str, options: VerifyOptions | None = None) -> Report:
        """Anew with ``options``; else the report that there is. Raises CgtoolError."""
        if options is not None or "verify" not in self.reports:
            with self._gpu_lock():
                self.reports["verify"] = self._named(super().verify(self.entry.spec, options))
        return self.reports["verify"]

    def _gpu_lock(self) -> AbstractContextManager[None]:
        # The simulated device does not use the GPU.
        simulated = self.capture_options.device == "simulated"
        return contextlib.nullcontext() if simulated else gpu_shared()

    def _named(self, result: T) -> T:
        """With the entry as it is called on every machine."""
        return replace(result, entry=replace(result.entry, spec=self.entry.name))


# --- who uses the GPU


@contextlib.contextmanager
def gpu_shared() -> Iterator[None]:
    """Runs concurrently with other captures, but never with a measurement."""
    with _locked("turn", fcntl.LOCK_EX) as turn, _locked("room", fcntl.LOCK_SH):
        fcntl.flock(turn, fcntl.LOCK_UN)
        yield


@contextlib.contextmanager
def gpu_alone() -> Iterator[None]:
    """Runs concurrently with no other test of this user."""
    with _locked("turn", fcntl.LOCK_EX) as turn, _locked("room", fcntl.LOCK_EX):
        fcntl.flock(turn, fcntl.LOCK_UN)
        yield


@contextlib.contextmanager
def _locked(name: str, operation: int) -> Iterator[int]:
    path = Path(tempfile.gettempdir()) / f"cgtool-{os.getuid()}-{name}.lock"
    try:
        # In a folder that all may write to, a link could lead to a file that another user chose.
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise machine(
            f"cannot open {path}, the lock by which tests share the GPU: {error.strerror}"
        ) from error
    try:
        fcntl.flock(handle, operation)
        yield handle
    finally:
        os.close(handle)
