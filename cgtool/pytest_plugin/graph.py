"""What ``cudagraph(...)`` returns: a capture, and what a test can ask of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from cgtool.analysis.gate.budgets import Budgets
from cgtool.analysis.gate.measured import measure
from cgtool.analysis.gate.metrics import BY_NAME, METRICS
from cgtool.analysis.gate.report import GateReport
from cgtool.model.capture import Capture
from cgtool.model.finding import Report
from cgtool.model.options import MAX_RUNS, MAX_SECONDS, VerifyOptions
from cgtool.pytest_plugin import gating, proving
from cgtool.pytest_plugin.error_translation import plainly
from cgtool.pytest_plugin.marker_options import Allowing, Gating, Proving, typed
from cgtool.pytest_plugin.workers import Workers


class Graph:
    """One entry point, captured."""

    def __init__(self, item: pytest.Item, number: int, workers: Workers, budgets: Budgets) -> None:
        self._item, self._number, self._workers, self._budgets = item, number, workers, budgets
        self.capture: Capture = workers.capture(workers.entry.name)
        """All of it, as ``cgtool.model.capture`` describes it."""
        measured = measure([self.capture])
        self._counts, self._unknown = measured.values.counts, measured.unknown
        if self.simulated:
            # Settled: what is measured later is measured there too, without looking for a GPU.
            workers.options = replace(workers.options, device="simulated")

    def __repr__(self) -> str:
        device = "the simulated device" if self.simulated else self.capture.environment.device
        return f"<cudagraph {self.entry} on {device}>"

    @property
    def entry(self) -> str:
        """``model.py:build``, files from pytest's root."""
        return self._workers.entry.name

    @property
    def path(self) -> Path:
        """The ``.cgt`` file, which pytest keeps for a while: ``cgtool dump`` draws it."""
        return self._workers.folder / "0.cgt"

    @property
    def simulated(self) -> bool:
        """Whether there was no GPU: nodes are ops then, and nothing has a time."""
        return self.capture.environment.simulated

    @property
    def counts(self) -> Mapping[str, int | float]:
        """Every exact figure, of the whole (``nodes``) and by phase (``nodes.backward``)."""
        return self._counts

    def __getattr__(self, name: str) -> int | float:
        """Exact figures of the whole, by the names of the metrics: ``nodes``, ``pool_mib``. Skips
        the test where this device does not have the figure."""
        __tracebackhide__ = True
        metric = BY_NAME.get(name.replace("_", "-"))
        if metric is None or metric.counted is None:
            raise AttributeError(f"a captured graph has no attribute {name!r}")
        if metric.name not in self.counts:
            pytest.skip(f"{self.entry} has no {metric.name} here: {self._unknown[metric.name]}")
        return self.counts[metric.name]

    def __dir__(self) -> list[str]:
        figures = [metric.name for metric in METRICS if metric.counted is not None]
        return [*super().__dir__(), *(name.replace("-", "_") for name in figures)]

    @plainly
    def verify(self, *, replays: int = 3, trials: int = 2) -> Report:
        """Prove that replays give what eager gives, as ``cgtool verify`` does.

        Raises AssertionError with the table of what parts and why; also when eager differs so much
        from itself that nothing can be proved.
        """
        asked = typed("graph.verify()", {"replays": replays, "trials": trials}, Proving)
        return proving.verify(self._workers, VerifyOptions(asked.replays, asked.trials))

    @plainly
    def check(self, *, allow: str | tuple[str, ...] | list[str] = ()) -> Report:
        """Find what would fail, or freeze, when this is captured, as ``cgtool check`` does.

        Raises AssertionError with every error and warning but those of the codes in ``allow``.
        """
        given = typed("graph.check()", {"allow": allow}, Allowing).allow
        return proving.check(self._workers, (given,) if isinstance(given, str) else given)

    @plainly
    def gate(
        self,
        *,
        baseline: bool = True,
        max_runs: int = MAX_RUNS,
        max_seconds: float = MAX_SECONDS,
        **budgets: object,
    ) -> GateReport:
        """Hold the figures to budgets and to the test's baseline, as ``cgtool gate`` does.

        ``budgets`` are named as its options are, in the units of their names: ``max_nodes=400``,
        ``max_nodes={"backward": 300}``, ``min_speedup=1.5``, ``max_increase={"nodes": "2%"}``,
        ``max_regression="3%"``. They go before those of the marker, which go before
        ``[tool.cgtool.gate]`` in ``pyproject.toml``. Times are measured where a budget or the
        baseline has one, in at most ``max_runs`` processes, none begun after ``max_seconds``.

        Raises AssertionError with the evidence of what does not hold. Skips the test when there
        was nothing that could be judged.
        """
        given = {"baseline": baseline, "max_runs": max_runs, "max_seconds": max_seconds}
        asked = typed("graph.gate()", given, Gating)
        self._workers.max_runs, self._workers.max_seconds = asked.max_runs, asked.max_seconds
        return gating.Gate(self._item, self._number, self._workers, self.simulated).hold(
            budgets, self._budgets, baseline=asked.baseline
        )
