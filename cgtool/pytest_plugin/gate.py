"""``graph.gate()``: the figures of one test compared with its budgets and its baseline.

A baseline is one small file per test, in a folder next to the file of the test:
``__cudagraphs__/test_model/test_step[4].json``. The simulated device counts ops and not nodes, so
its baseline is another file, ``test_step[4].simulated.json``.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from cgtool.analysis.gate.budgets import Budgets, checked, same_entry
from cgtool.analysis.gate.judge import GateReport, gate_report
from cgtool.analysis.gate.metrics import BY_NAME, metric_of
from cgtool.analysis.gate.verdict import FAIL, PASS, UNKNOWN, Verdict
from cgtool.cli.gate_project import find_project, project_budgets
from cgtool.cli.gate_targets import Base, Target, judge
from cgtool.model import baseline as baselines
from cgtool.model.baseline import Baseline
from cgtool.model.failure import CgtoolError, usage
from cgtool.pytest_plugin import REPORTED, Record
from cgtool.pytest_plugin.error_translation import WIDTH, Unexpected
from cgtool.pytest_plugin.marker import GATED, budgets_of
from cgtool.pytest_plugin.workers import Workers

FOLDER = "__cudagraphs__"
_LONGEST = 120
_UNSAFE = re.compile(r"[^A-Za-z0-9_.,=+@\[\]-]")


def root_of(config: pytest.Config) -> Path:
    """The folder that names of files begin from: pytest's root where a configuration file says
    which that is; else its root depends on the arguments, and the folder that it was started in
    does not."""
    return config.rootpath if config.inipath is not None else config.invocation_params.dir


class Gate:
    """One call of ``graph.gate()``."""

    def __init__(self, item: pytest.Item, number: int, workers: Workers, simulated: bool) -> None:
        self._item, self._workers, self._simulated = item, workers, simulated
        self._path = path_of(item, number, simulated=simulated)
        self._entry = workers.entry.name

    def judge(
        self, arguments: Mapping[str, object], marked: Budgets, *, baseline: bool
    ) -> GateReport:
        """Raises Unexpected for a figure over its budget or worse than the baseline, CgtoolError
        (exit 2) for a budget that is wrong and a baseline that is missing; skips where nothing
        could be judged."""
        self._item.stash[GATED] = True
        budgets = budgets_of("graph.gate()", arguments).over(marked).over(self._project())
        budgets = checked(budgets)
        if not (baseline or budgets.limits):
            raise usage(
                f"{self._entry} has no budget and no baseline",
                fix="give a budget, graph.gate(max_nodes=400, baseline=False), or leave "
                "baseline=False out",
            )
        write = baseline and bool(self._item.config.getoption("cudagraph_update"))
        base = None
        if baseline and not write:
            base = Base(self._path, read_baseline(self._path, self._item, self._entry))
        self._workers.begin()
        report = self._report(budgets, base, write=write)
        verdicts = [verdict for target in report.targets for verdict in target.verdicts]
        unjudged = [verdict for verdict in verdicts if self._is_excused(verdict)]
        failed = [
            verdict for verdict in verdicts if verdict.verdict != PASS and verdict not in unjudged
        ]
        if failed:
            raise Unexpected(self._text(report, failed, base))
        changed = write and write_baseline(self._path, self._workers.measured().values)
        reasons = [
            (
                verdict.metric,
                verdict.text.removeprefix("not measured: ").removeprefix("not compared: "),
            )
            for verdict in unjudged
        ]
        record: Record = {
            "simulated": self._simulated,
            "gated": len(verdicts) > len(unjudged),
            "written": shown_path(self._path, self._item.config) if changed else "",
            "unchanged": write and not changed,
            "unjudged": reasons,
        }
        self._item.stash[REPORTED].append(record)
        if not write and len(verdicts) == len(unjudged):
            texts = [f"{metric}: {reason}" for metric, reason in reasons]
            pytest.skip(f"nothing could be judged: {'; '.join(texts)}")
        return report

    def _project(self) -> Budgets:
        """The budgets of the nearest ``pyproject.toml``. The baseline that it names is for
        ``cgtool gate``: a test has its own."""
        project = find_project(self._item.path.parent)
        if project is None:
            return Budgets()
        return project_budgets(project, self._workers.entry.spec, simulated=self._simulated)

    def _report(self, budgets: Budgets, base: Base | None, *, write: bool) -> GateReport:
        names = [budget.metric for budget in budgets.limits]
        names += [increase.metric for increase in budgets.increases]
        timed = any(BY_NAME[name].source == "bench" for name in names)
        if not (base or budgets.limits or (write and timed)):
            return gate_report(())
        judged, _ = judge(
            Target(self._entry, live=True),
            lambda _simulated: (budgets, base),
            self._workers,
            # A baseline with times holds more runs than a verdict needs.
            save=write and timed,
        )
        return gate_report((judged,))

    def _is_excused(self, verdict: Verdict) -> bool:
        """Undecided through no fault of the code or the test: there is no GPU, times are off, or
        the times are too close to the limit, disturbed, or of another machine."""
        metric = metric_of(verdict.metric)
        if verdict.verdict != UNKNOWN or metric is None:
            return False
        if self._simulated and not metric.simulated:
            return True
        if metric.source == "bench" and not self._workers.times:
            return True
        return verdict.measured is not None

    def _text(self, report: GateReport, failed: list[Verdict], base: Base | None) -> str:
        from cgtool.render.gate_table import conclusion, measured_text, render
        from cgtool.render.table import drawn

        figures = [
            f"{verdict.metric} {measured_text(verdict)}, {verdict.requirement}"
            for verdict in failed
        ]
        lines = [f"{self._entry}: {conclusion(report).plain}: {'; '.join(figures)}"]
        lines.append(drawn(render(report), WIDTH))
        worse = any(verdict.verdict == FAIL and verdict.baseline is not None for verdict in failed)
        if base is not None and worse:
            lines.append(f"if this change is intended: {how_to_record(self._item)}")
        lines.append(f"capture: {self._workers.file(0)}")
        return "\n".join(lines)


# --- baselines


def path_of(item: pytest.Item, number: int, *, simulated: bool) -> Path:
    """The baseline of the test's ``number``-th graph (from 1)."""
    names = [node.name for node in item.listchain() if isinstance(node, pytest.Class | pytest.Item)]
    stem = safe(".".join(names)) + (f".{number}" if number > 1 else "")
    suffix = ".simulated.json" if simulated else ".json"
    return item.path.parent / FOLDER / item.path.stem / f"{stem}{suffix}"


def safe(name: str) -> str:
    """A file name for a test: its own, where every file system takes that; else what it takes of
    it, and a hash, so that no two tests share one."""
    plain = _UNSAFE.sub("-", name)[:_LONGEST]
    if plain == name:
        return name
    return f"{plain}-{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:8]}"


def how_to_record(item: pytest.Item) -> str:
    """The command that writes the test's baselines."""
    file = os.path.relpath(item.path, item.config.invocation_params.dir)
    test = "::".join((file, *item.nodeid.split("::")[1:]))
    return f"pytest {shlex.quote(test)} --cudagraph-update"


def read_baseline(path: Path, item: pytest.Item, entry: str) -> Baseline:
    """The baseline of a test. Raises CgtoolError (exit 2) when it is missing, damaged, or of
    another entry."""
    shown = shown_path(path, item.config)
    if _is_missing(path):
        raise usage(
            f"this test has no baseline: {shown} does not exist",
            why=_other_device(path, item.config),
            fix=f"record it with `{how_to_record(item)}` and commit the file; "
            "graph.gate(baseline=False) checks budgets alone",
        )
    try:
        baseline = baselines.read(path)
    except CgtoolError as error:
        if "--save-baseline" not in (error.failure.fix or ""):
            raise
        raise CgtoolError(replace(error.failure, fix=f"`{how_to_record(item)}`")) from None
    if not same_entry(baseline.entry.spec, entry, root_of(item.config)):
        raise usage(
            f"{shown} is a baseline of {baseline.entry.spec}, and this test captures {entry}",
            fix=f"if the test was changed on purpose, `{how_to_record(item)}`",
        )
    return baseline


def _is_missing(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass  # reading it says why
    return False


def _other_device(path: Path, config: pytest.Config) -> str | None:
    """Names the baseline of the other kind of device, which often exists: CI without a GPU and a
    machine with one need a baseline each."""
    simulated = path.name.endswith(".simulated.json")
    stem = path.name.removesuffix(".simulated.json" if simulated else ".json")
    other = path.with_name(f"{stem}{'' if simulated else '.simulated'}.json")
    if not other.exists():
        return None
    here, there = ("the simulated device", "a GPU") if simulated else ("a GPU", "the simulated one")
    return f"{shown_path(other, config)} is that of {there}; this run is on {here}"


def shown_path(path: Path, config: pytest.Config) -> str:
    """From pytest's root, where it is below it."""
    root = root_of(config)
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def write_baseline(path: Path, values: Baseline) -> bool:
    """Whether the file had to change: one with the same counts is left as it is, so that the diff
    of an update of all shows what changed. Raises CgtoolError (exit 2) where it cannot be
    written."""
    try:
        if _same(baselines.read(path), values):
            return False
    except CgtoolError:
        pass  # missing, or damaged: written again
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise usage(f"cannot create {path.parent}: {error.strerror}") from error
    baselines.write(path, values)
    return True


def _same(old: Baseline, new: Baseline) -> bool:
    """Times are never the same twice: a baseline with new ones is another."""
    if old.samples or new.samples:
        return False

    def content(values: Baseline) -> tuple[object, ...]:
        entry = replace(values.entry, file=None, line=None)
        environment = values.environment
        return entry, environment.device, environment.torch, values.counts, values.ops

    return content(old) == content(new)
