"""The worker processes of one ``cgtool bench``, and when there are enough of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from cgtool.analysis import bench_verdicts, metrics
from cgtool.analysis.bench import BenchReport, report
from cgtool.analysis.measured import measure
from cgtool.analysis.regression import (
    CANNOT_TELL,
    PAIR_TOLERANCE,
    TOLERANCE,
    pair_precision,
    schedule,
)
from cgtool.analysis.runs import merge
from cgtool.cli.gate_targets import Base, open_baseline
from cgtool.cli.output import attempt
from cgtool.model.capture import Capture
from cgtool.model.failure import usage
from cgtool.model.file import read_raw
from cgtool.model.options import BenchOptions, CaptureOptions

FIRST_RUNS = 3
"""Before the first look at a baseline."""
MAX_SECONDS = 300.0


@dataclass
class Runs:
    """How an entry is measured, and the captures that were."""

    entry: str
    inputs: tuple[str, ...]
    options: CaptureOptions
    bench: BenchOptions
    folder: Path
    timeout: float | None
    quiet: bool
    captures: list[Capture] = field(default_factory=list)

    def one(self, **changes: object) -> None:
        """One more worker process. Raises CgtoolError."""
        self.captures.append(
            attempt(
                self.entry,
                self._file(len(self.captures)),
                inputs=self.inputs,
                options=self.options,
                bench=replace(self.bench, **changes),
                timeout=self.timeout,
                quiet=self.quiet,
            )
        )

    def up_to(self, count: int, deadline: float) -> bool:
        """More of them until there are so many; whether there was time for all."""
        while len(self.captures) < count:
            if time.monotonic() > deadline:
                return False
            self.one()
        return True

    def merged(self) -> Capture:
        return merge(self.captures)

    def raw(self) -> dict[str, str]:
        """The texts that the saved capture points to: those of the first."""
        names = [graph.raw_dot for graph in self.captures[0].graphs if graph.raw_dot is not None]
        return {name: read_raw(self._file(0), name) for name in names}

    def _file(self, number: int) -> Path:
        return self.folder / f"{number}.cgt"


def open_base(path: Path, entry: str) -> Base:
    """The baseline of an entry. Raises CgtoolError (exit 2) for one of another entry, and for one
    that holds no times."""
    base = open_baseline(path)
    spec = base.values.entry.spec
    if not metrics.same_entry(spec, entry):
        raise usage(
            f"{path} is a baseline of {spec}, not of {entry}",
            fix="--against ENTRY2 compares two entries",
        )
    if not any(one.name == "replay" for one in base.values.samples):
        raise usage(
            f"{path} holds no times",
            fix="save one that does with `cgtool bench ENTRY --runs 10 --save FILE`",
        )
    return base


def measured(asked: Runs, count: int) -> BenchReport:
    """So many runs, and nothing to hold them against."""
    for _ in range(count):
        asked.one()
    return report(asked.merged())


def held_to_baseline(
    asked: Runs,
    base: Base,
    tolerance: float | None,
    first: int | None,
    most: int,
    max_seconds: float | None,
) -> BenchReport:
    """Runs until every phase is told from the baseline, or there is no room for more of them."""
    tolerance = TOLERANCE if tolerance is None else tolerance
    seconds = max_seconds or MAX_SECONDS
    deadline = time.monotonic() + seconds
    looks = schedule(first or min(FIRST_RUNS, most), most)
    notes: tuple[str, ...] = ()
    asked.one()
    found = _verdicts(asked, base, tolerance, len(looks))
    if all(one.answer is not None for one in found):
        for look in looks:
            in_time = asked.up_to(look, deadline)
            found = _verdicts(asked, base, tolerance, len(looks))
            if all(one.verdict != CANNOT_TELL for one in found):
                break
            if not in_time:
                notes = (f"{seconds:g} s were over after {len(asked.captures)} runs",)
                break
    return replace(report(asked.merged()), against=str(base.path), verdicts=found, notes=notes)


def _verdicts(
    asked: Runs, base: Base, tolerance: float, looks: int
) -> tuple[bench_verdicts.PhaseVerdict, ...]:
    now = measure(asked.captures).values
    phases = tuple(dict.fromkeys(one.phase for one in now.samples))
    found = bench_verdicts.against_baseline(base.values, now, phases, tolerance, looks)
    if not found:
        known = ", ".join(dict.fromkeys(one.phase for one in base.values.samples))
        raise usage(f"{base.path} holds times of {known}, and {', '.join(phases)} was measured")
    return found


def held_to_entry(asked: Runs, against: str, tolerance: float | None) -> BenchReport:
    """Pairs of captures in one worker process, to a precision that the tolerance asks for."""
    tolerance = PAIR_TOLERANCE if tolerance is None else tolerance
    asked.one(against=against, precision=pair_precision(tolerance))
    capture = asked.merged()
    return replace(
        report(capture),
        against=against,
        verdicts=bench_verdicts.against_entry(capture, tolerance),
        notes=tuple(
            one.text for one in capture.caveats if one.code in ("same-weights", "time-limit")
        ),
    )
