"""``graph.gate()``: the figures of one test against its budgets and its baseline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from cgtool.analysis.gate.budgets import Budgets, checked, project_budgets
from cgtool.analysis.gate.metrics import BY_NAME
from cgtool.analysis.gate.report import FAIL, PASS, UNKNOWN, GateReport, Verdict, gate_report
from cgtool.cli.gate_inputs import Base, Target, find_project
from cgtool.cli.gate_measure import Limits, judge
from cgtool.model.failure import usage
from cgtool.pytest_plugin import baselines
from cgtool.pytest_plugin.error_translation import NotHeld, drawn
from cgtool.pytest_plugin.marked import GATED
from cgtool.pytest_plugin.marker_options import budgets_of
from cgtool.pytest_plugin.terminal_summary import REPORTED, Record
from cgtool.pytest_plugin.workers import Workers


class Gate:
    """One call of ``graph.gate()``."""

    def __init__(self, item: pytest.Item, number: int, workers: Workers, simulated: bool) -> None:
        self._item, self._workers, self._simulated = item, workers, simulated
        self._path = baselines.path_of(item, number, simulated=simulated)
        self._entry = workers.entry.name

    def hold(self, given: Mapping[str, object], marked: Budgets, *, baseline: bool) -> GateReport:
        """Raises NotHeld for what is over a budget or worse than the baseline, CgtoolError (exit 2)
        for a budget that is none and a baseline that is missing, skips where nothing was judged."""
        self._item.stash[GATED] = True
        budgets = checked(budgets_of("graph.gate()", given).over(marked).over(self._project()))
        if not (baseline or budgets.limits):
            raise usage(
                f"there is nothing to hold {self._entry} to",
                fix="give a budget, graph.gate(max_nodes=400, baseline=False), or leave "
                "baseline=False out",
            )
        write = baseline and bool(self._item.config.getoption("cudagraph_update"))
        base = None
        if baseline and not write:
            base = Base(self._path, baselines.read(self._path, self._item, self._entry))
        self._workers.begin()
        report = self._judged(budgets, base, write=write)
        verdicts = [one for target in report.targets for one in target.verdicts]
        unjudged = [one for one in verdicts if self._is_excused(one)]
        if any(one.verdict != PASS and one not in unjudged for one in verdicts):
            raise NotHeld(self._text(report, unjudged, base))
        self._record(gated=any(one.verdict == PASS for one in verdicts), unjudged=unjudged)
        if write:
            self._write()
        elif all(one.verdict == UNKNOWN for one in verdicts):
            pytest.skip(f"nothing could be judged: {'; '.join(_reasons(unjudged))}")
        return report

    def _project(self) -> Budgets:
        """Of the nearest ``pyproject.toml``. The baseline that it names is one of ``cgtool gate``:
        a test has its own."""
        project = find_project(self._item.path.parent)
        if project is None:
            return Budgets()
        return project_budgets(project, self._workers.entry.spec, simulated=self._simulated)

    def _judged(self, budgets: Budgets, base: Base | None, *, write: bool) -> GateReport:
        named = [one.metric for one in budgets.limits] + [one.metric for one in budgets.increases]
        timed = any(BY_NAME[one].source == "bench" for one in named)
        if not (base or budgets.limits or (write and timed)):
            return gate_report(())
        judged, _ = judge(
            Target(self._entry, live=True),
            Limits(lambda *_: budgets, lambda *_: base),
            self._workers,
            # A baseline with times holds more runs than a verdict needs.
            save=write and timed,
        )
        return gate_report((judged,))

    def _is_excused(self, verdict: Verdict) -> bool:
        """Cannot be told, for no fault of the code or the test: there is no GPU, times are off, or
        what was measured is too near, disturbed, or of another machine than the baseline."""
        if verdict.verdict != UNKNOWN:
            return False
        metric = BY_NAME.get(verdict.metric.partition(".")[0])
        if metric is None:
            return False
        if self._simulated and not metric.simulated:
            return True
        if metric.source == "bench" and not self._workers.times:
            return True
        return verdict.measured is not None

    def _text(self, report: GateReport, unjudged: list[Verdict], base: Base | None) -> str:
        from cgtool.render.gate_table import conclusion, measured_text, render

        bad = [
            f"{one.metric} {measured_text(one)}, {one.held_to}"
            for target in report.targets
            for one in target.verdicts
            if one.verdict != PASS and one not in unjudged
        ]
        lines = [f"{self._entry}: {conclusion(report).plain}: {'; '.join(bad)}"]
        lines.append(drawn(render(report)))
        worse = any(
            one.verdict == FAIL and one.baseline is not None
            for target in report.targets
            for one in target.verdicts
        )
        if base is not None and worse:
            lines.append(f"if this is meant: {baselines.how_to_record(self._item)}")
        lines.append(f"capture: {self._workers.folder / '0.cgt'}")
        return "\n".join(lines)

    def _write(self) -> None:
        wrote = baselines.write(self._path, self._workers.measured().values)
        record = self._item.stash[REPORTED][-1]
        record["written"] = self._shown(self._path) if wrote else ""
        record["unchanged"] = not wrote

    def _shown(self, path: Path) -> str:
        return baselines.shown_path(path, self._item.config)

    def _record(self, *, gated: bool, unjudged: list[Verdict]) -> None:
        record: Record = {
            "simulated": self._simulated,
            "gated": gated,
            "written": "",
            "unchanged": False,
            "unjudged": [[one.metric, _reason(one)] for one in unjudged],
        }
        self._item.stash[REPORTED].append(record)


def _reason(verdict: Verdict) -> str:
    return verdict.text.removeprefix("not measured: ").removeprefix("not compared: ")


def _reasons(verdicts: list[Verdict]) -> list[str]:
    return [f"{one.metric}: {_reason(one)}" for one in verdicts]
