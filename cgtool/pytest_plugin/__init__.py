"""The pytest plugin: the fixture ``cudagraph``, its marker, its options, its part of the summary.

Loaded with every pytest run where cgtool is installed, so nothing but pytest is imported here: what
the fixture needs is imported when a test asks for it. docs/ci.md shows how it is used.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from cgtool.pytest_plugin.graph import Factory

_MARKER = (
    "cudagraph(max_nodes=400, ..., device='simulated', input=[...], seed=0, requires_gpu=True): "
    "budgets for graph.gate(), by the names of `cgtool gate`; capture options; requires_gpu skips "
    "the test if there is no GPU"
)

Record = dict[str, Any]
"""One ``graph.gate()`` as plain data: ``simulated`` (bool), ``gated`` (bool), ``written`` (a
file, or empty), ``unchanged`` (bool), ``unjudged`` (pairs of a metric and why)."""

REPORTED = pytest.StashKey[list[Record]]()


def _device(text: str) -> str:
    from cgtool.model.options import unexpected

    if expected := unexpected("device", text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected {expected}")
    return text


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("cudagraph", "CUDA graphs (cgtool)")
    group.addoption(
        "--cudagraph-update",
        action="store_true",
        help="write the baselines of the tests that run",
    )
    group.addoption(
        "--cudagraph-device",
        type=_device,
        metavar="DEVICE",
        help="cuda, cuda:N or simulated, for tests that do not choose a device; with cuda a test "
        "fails if there is no GPU (default: a GPU if there is one)",
    )
    group.addoption(
        "--cudagraph-no-times",
        action="store_true",
        help="do not time replays: budgets for times and the speedup are not judged",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)
    config.pluginmanager.register(Tally(config), "cgtool-tally")


@pytest.fixture
def cudagraph(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Factory:
    """Captures an entry point in a process of its own: ``graph = cudagraph("model.py:build")``, or
    ``cudagraph(build)``. What comes back has counts (``graph.nodes``), ``graph.verify()``,
    ``graph.check()`` and ``graph.gate(max_nodes=400)``."""
    from cgtool.pytest_plugin.graph import Factory

    return Factory(request.node, tmp_path_factory)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cudagraph") is not None:
        from cgtool.pytest_plugin.marker import prepare

        prepare(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    yield
    if item.get_closest_marker("cudagraph") is not None:
        from cgtool.pytest_plugin.marker import check_judged

        check_judged(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    records: Any = item.stash.get(REPORTED, None)
    if records and call.when == "call":
        # An attribute of plain data: it comes through from the processes of pytest-xdist.
        report.cudagraph = records  # type: ignore[attr-defined]
    return report


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
