"""What all tests of a run came to: one section at its end."""

from __future__ import annotations

from collections import defaultdict

import pytest

Record = dict[str, object]
"""Of one ``graph.gate()``, as plain data: ``simulated`` (bool), ``gated`` (bool), ``written`` (a
file, or empty), ``unchanged`` (bool), ``unjudged`` (pairs of a metric and why)."""

REPORTED = pytest.StashKey[list[Record]]()


class Tally:
    """Gathers the records of all reports, those of other processes too."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._records: list[tuple[str, Record]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        records: list[Record] = getattr(report, "cudagraph", [])
        self._records += [(report.nodeid, one) for one in records]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._records:
            return
        if terminalreporter.verbosity >= 0:
            terminalreporter.write_sep("=", "cudagraph")
        for line in self._lines():
            terminalreporter.write_line(line)

    def _lines(self) -> list[str]:
        records = [one for _, one in self._records]
        gated = [one for one in records if one["gated"]]
        simulated = sum(bool(one["simulated"]) for one in gated)
        written = sorted({str(one["written"]) for one in records if one["written"]})
        unchanged = sum(bool(one["unchanged"]) for one in records)
        parts = [f"{len(gated)} gated"]
        if simulated:
            parts[0] += f" ({simulated} on the simulated device)"
        if written:
            parts.append(f"{len(written)} baseline{'s' * (len(written) > 1)} written")
        if unchanged:
            parts.append(f"{unchanged} unchanged")
        lines = [f"cudagraph: {', '.join(parts)}"]
        lines += [f"wrote {file}" for file in written]
        for reason, (metrics, tests) in self._unjudged().items():
            count = f"{len(tests)} test{'s' * (len(tests) > 1)}"
            lines.append(f"{', '.join(sorted(metrics))} not judged in {count}: {reason}")
        return lines

    def _unjudged(self) -> dict[str, tuple[set[str], set[str]]]:
        """Why, to the metrics and the tests."""
        found: dict[str, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
        for test, one in self._records:
            pairs = one["unjudged"]
            assert isinstance(pairs, list)
            for metric, reason in pairs:
                metrics, tests = found[reason]
                metrics.add(metric)
                tests.add(test)
        return found
