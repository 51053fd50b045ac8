"""Worker processes for entries, with the options of one command line."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cgtool.cli.attempts import attempt, report_of
from cgtool.model.capture import Capture
from cgtool.model.finding import Report
from cgtool.model.options import (
    MAX_RUNS,
    MAX_SECONDS,
    BenchOptions,
    CaptureOptions,
    CheckOptions,
    VerifyOptions,
)

_AT_ONCE = 4
"""Processes that import torch: half a gigabyte of the host's memory each."""


@dataclass
class Measuring:
    """How entries are measured."""

    options: CaptureOptions
    folder: Path
    """For what the workers write."""
    timeout: float | None
    quiet: bool
    max_seconds: float = MAX_SECONDS
    max_runs: int = MAX_RUNS
    timing: BenchOptions = field(default_factory=BenchOptions)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def file(self, number: int) -> Path:
        """The capture that the ``number``-th worker wrote, from 0."""
        return self.folder / f"{number}.cgt"

    def capture(self, spec: str) -> Capture:
        """Raises CgtoolError."""
        return self._attempt(spec, None)

    def bench(self, spec: str) -> Capture:
        """One run. Raises CgtoolError (exit 3) where there is no GPU."""
        return self._attempt(spec, self.timing)

    def _attempt(self, spec: str, bench: BenchOptions | None) -> Capture:
        return attempt(
            spec,
            self.file(next(self._numbers)),
            options=self.options,
            bench=bench,
            timeout=self.timeout,
            quiet=self.quiet,
        )

    def check(self, spec: str) -> Report:
        """Raises CgtoolError."""
        return self._report_of(spec, CheckOptions())

    def verify(self, spec: str, asked: VerifyOptions | None = None) -> Report:
        """Raises CgtoolError."""
        return self._report_of(spec, asked or VerifyOptions())

    def _report_of(self, spec: str, asked: CheckOptions | VerifyOptions) -> Report:
        return report_of(
            spec,
            asked,
            options=self.options,
            timeout=self.timeout,
            quiet=self.quiet,
        )

    @contextmanager
    def ahead(self, count: int) -> Iterator[int]:
        """Have the next workers, of so many to come, import torch side by side; how many do.

        Never while one of them measures: code that waits for the host would be timed beside it.
        """
        some = min(count, _AT_ONCE, os.cpu_count() or 1)
        if some < 2:
            yield count
            return
        from cgtool.worker import supervisor

        with supervisor.ahead(some):
            yield some
