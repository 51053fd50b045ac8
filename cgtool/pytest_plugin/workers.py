"""The worker processes of one test: what ``cgtool gate`` measures with, made to run in a test."""

from __future__ import annotations

import contextlib
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec.structs import replace

from cgtool.analysis.gate.evidence import Measured
from cgtool.analysis.gate.measured import measure
from cgtool.cli.attempts import Measuring
from cgtool.model.capture import Capture
from cgtool.model.failure import machine
from cgtool.model.finding import Report
from cgtool.model.options import VerifyOptions
from cgtool.pytest_plugin import gpu_lock as turns
from cgtool.pytest_plugin.entries import Named

T = TypeVar("T", Capture, Report)


@dataclass
class Workers(Measuring):
    """Measures one entry. What was measured for the test before is given again."""

    entry: Named = field(kw_only=True)
    times: bool = field(kw_only=True)
    """False: no replay is timed."""
    reports: dict[str, Report] = field(default_factory=dict)
    _captures: list[Capture] = field(default_factory=list)
    _benches: list[Capture] = field(default_factory=list)
    _given: Counter[str] = field(default_factory=Counter)
    """How many of each the present gate has had."""

    def begin(self) -> None:
        """Another gate, which may have again what was measured for the last."""
        self._given.clear()

    def measured(self) -> Measured:
        """All that is known by now."""
        return measure(self._benches or self._captures, tuple(self.reports.values()))

    # --- what a gate asks for; by the name of the entry, which is not what the worker is told

    def capture(self, spec: str) -> Capture:
        if self._is_next("capture", self._captures):
            with self._turn():
                self._captures.append(self._named(super().capture(self.entry.spec)))
        return self._captures[self._given["capture"] - 1]

    def bench(self, spec: str) -> Capture:
        if not self.times:
            raise machine("--cudagraph-no-times was given")
        if self._is_next("bench", self._benches):
            with turns.alone():
                self._benches.append(self._named(super().bench(self.entry.spec)))
        return self._benches[self._given["bench"] - 1]

    def _is_next(self, kind: str, known: list[Capture]) -> bool:
        """Whether the one that is asked for now is still to be measured."""
        self._given[kind] += 1
        return self._given[kind] > len(known)

    def check(self, spec: str) -> Report:
        if "check" not in self.reports:
            with self._turn():
                self.reports["check"] = self._named(super().check(self.entry.spec))
        return self.reports["check"]

    def verify(self, spec: str, asked: VerifyOptions | None = None) -> Report:
        """Anew with ``asked``; else what is known, where it is."""
        if asked is not None or "verify" not in self.reports:
            with self._turn():
                self.reports["verify"] = self._named(super().verify(self.entry.spec, asked))
        return self.reports["verify"]

    def _turn(self) -> AbstractContextManager[None]:
        # Nothing on the simulated device takes the GPU from anybody.
        simulated = self.options.device == "simulated"
        return contextlib.nullcontext() if simulated else turns.together()

    def _named(self, found: T) -> T:
        """With the entry as it is called on every machine."""
        return replace(found, entry=replace(found.entry, spec=self.entry.name))
