"""What one ``cgtool bench`` makes of its worker processes."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from cgtool.analysis.gate.budgets import same_entry
from cgtool.analysis.gate.measured import measure
from cgtool.analysis.gate.times import BaselineComparison
from cgtool.analysis.timing import bench
from cgtool.analysis.timing.bench import BenchReport, bench_report
from cgtool.analysis.timing.runs import merge
from cgtool.cli.gate_targets import Base, open_baseline
from cgtool.cli.sequential_runs import Look, Runs, until_told
from cgtool.model.capture import Capture
from cgtool.model.capture_file import read_raw
from cgtool.model.failure import usage


def open_base(path: Path, entry: str) -> Base:
    """The baseline of an entry. Raises CgtoolError (exit 2) for one of another entry, and for one
    that holds no times."""
    base = open_baseline(path)
    spec = base.values.entry.spec
    if not same_entry(spec, entry):
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


def measured(runs: Runs, count: int) -> BenchReport:
    """So many runs, as far as there is time for them, and nothing to hold them against."""
    runs.one()
    in_time = runs.up_to(count)
    notes = measure(runs.captures).notes
    return replace(
        bench_report(merge(runs.captures)), notes=notes if in_time else (*notes, runs.out_of_time)
    )


def held_to_baseline(
    runs: Runs, base: Base, tolerance: float, *, first: int | None, most: int
) -> BenchReport:
    """Runs until every phase is told from the baseline, or there is no room for more of them."""

    def look(looks: int) -> Look[tuple[dict[str, BaselineComparison], tuple[str, ...]]]:
        measured = measure(runs.captures)
        now = measured.values
        found = bench.against_baseline(base.values, now, tolerance, looks)
        if not found:
            there, here = (
                ", ".join(dict.fromkeys(one.phase for one in side.samples))
                for side in (base.values, now)
            )
            raise usage(f"{base.path} holds times of {there}, and {here} was measured")
        held = found.values()
        return Look(
            (found, measured.notes),
            any(one.open for one in held),
            any(one.compared for one in held),
        )

    runs.one()
    (found, notes), note = until_told(runs, look, first=first, most=most)
    return replace(
        bench_report(merge(runs.captures)),
        against=str(base.path),
        verdicts=bench.verdicts(found),
        notes=notes if note is None else (*notes, note),
    )


def held_to_entry(runs: Runs, against: str, tolerance: float) -> BenchReport:
    """Pairs of captures in one worker process, to the precision that it was asked for."""
    capture = runs.one()
    return replace(
        bench_report(capture),
        against=against,
        verdicts=bench.against_entry(capture, tolerance),
        notes=tuple(
            one.text for one in capture.caveats if one.code in ("same-weights", "time-limit")
        ),
    )


def raw_texts(file: Path, capture: Capture) -> dict[str, str]:
    """The texts that a capture points to, from the file that its worker wrote."""
    names = [graph.raw_dot for graph in capture.graphs if graph.raw_dot is not None]
    return {name: read_raw(file, name) for name in names}
