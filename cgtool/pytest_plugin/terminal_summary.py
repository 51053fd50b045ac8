"""The section of a test run's summary: what all gates found."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

Record = dict[str, Any]
"""Of one ``graph.gate()``, as plain data: ``simulated`` (bool), ``gated`` (bool), ``written`` (a
file, or empty), ``unchanged`` (bool), ``unjudged`` (pairs of a metric and why)."""

REPORTED = pytest.StashKey[list[Record]]()


class Tally:
    """Collects the records of all reports, those of other processes too."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._records: list[tuple[str, Record]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        records: list[Record] = getattr(report, "cudagraph", [])
        self._records += [(report.nodeid, record) for record in records]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._records:
            return
        if terminalreporter.verbosity >= 0:
            terminalreporter.write_sep("=", "cudagraph")
        for line in self._lines():
            terminalreporter.write_line(line)

    def _lines(self) -> list[str]:
        records = [record for _, record in self._records]
        gated = [record for record in records if record["gated"]]
        simulated = sum(bool(record["simulated"]) for record in gated)
        written = sorted({str(record["written"]) for record in records if record["written"]})
        unchanged = sum(bool(record["unchanged"]) for record in records)
        summary = f"cudagraph: {len(gated)} gated"
        if simulated:
            summary += f" ({simulated} on the simulated device)"
        if written:
            summary += f", {len(written)} baseline{'s' * (len(written) > 1)} written"
        if unchanged:
            summary += f", {unchanged} unchanged"
        lines = [summary, *(f"wrote {file}" for file in written)]
        reasons: dict[str, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
        for test, record in self._records:
            for metric, reason in record["unjudged"]:
                metrics, tests = reasons[reason]
                metrics.add(metric)
                tests.add(test)
        for reason, (metrics, tests) in reasons.items():
            count = f"{len(tests)} test{'s' * (len(tests) > 1)}"
            lines.append(f"{', '.join(sorted(metrics))} not judged in {count}: {reason}")
        return lines
