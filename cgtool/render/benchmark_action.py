"""Figures for github-action-benchmark, as its tool ``customSmallerIsBetter`` reads them.

https://github.com/benchmark-action/github-action-benchmark : an array of name, unit, value, and
optionally range and extra. The action shows names and extra in pages and comments: characters that
do not print are escapes in them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from cgtool.analysis.gate.metrics import BY_NAME
from cgtool.analysis.gate.report import GateReport, Judged
from cgtool.render.text import visible


def encode(report: GateReport) -> bytes:
    """Every figure of every target that is better when it is smaller, judged or not."""
    rows = [
        row
        for name, target in zip(report.names(), report.targets, strict=True)
        for row in _rows(name, target)
    ]
    return msgspec.json.format(msgspec.json.encode(rows), indent=2) + b"\n"


def _rows(entry: str, target: Judged) -> list[dict[str, Any]]:
    rows = []
    for name, value in target.figures.items():
        metric = BY_NAME[name.partition(".")[0]]
        whole_again = name != metric.name and value == target.figures.get(metric.name)
        if metric.larger_is_better or (whole_again and not metric.exact):
            # A time of the phase that is the whole: one chart of it is enough.
            continue
        row: dict[str, Any] = {
            "name": visible(f"{entry} {name}"),
            "unit": metric.unit or "count",
            "value": value,
        }
        spread = target.spreads.get(name)
        if spread is not None:
            row["range"] = f"± {spread:.3g}"
        judged = [one for one in target.verdicts if one.metric == name]
        lines = [f"{one.held_to}: {one.verdict}" for one in judged]
        row["extra"] = "\n".join(map(visible, (f"{target.device}, torch {target.torch}", *lines)))
        rows.append(row)
    return rows
