"""The fixture ``cudagraph``, and the captured graph that a call of it returns."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import cgtool
from cgtool.analysis.gate.budgets import Budgets, nearest
from cgtool.analysis.gate.judge import GateReport
from cgtool.analysis.gate.measured import measure
from cgtool.analysis.gate.metrics import BY_NAME, METRICS
from cgtool.analysis.reports import (
    exit_code,
    explain_findings,
    is_hazard,
    noise_findings,
    unanswered,
)
from cgtool.api import GraphNotFoundError, LoadedCapture
from cgtool.findings import codes, page
from cgtool.loaded_graph import LoadedGraph
from cgtool.model import capture_file
from cgtool.model.capture import Capture
from cgtool.model.failure import EXIT_FOUND, EXIT_MACHINE, EXIT_OK, CgtoolError, machine, usage
from cgtool.model.files import is_file
from cgtool.model.finding import ERROR, Report
from cgtool.model.options import MAX_RUNS, MAX_SECONDS, VerifyOptions
from cgtool.program.spec import parse_entry
from cgtool.pytest_plugin import REPORTED
from cgtool.pytest_plugin.error_translation import WIDTH, Unexpected, failure_text, translated
from cgtool.pytest_plugin.gate import Gate, root_of
from cgtool.pytest_plugin.marker import (
    GATED,
    MARKED,
    CheckArguments,
    GateArguments,
    Marked,
    options_of,
    read,
    typed,
    why_no_gpu,
)
from cgtool.pytest_plugin.workers import NamedEntry, Workers


class Factory:
    """``cudagraph("model.py:build")``, ``cudagraph(build)``: captures in a worker process."""

    def __init__(self, item: pytest.Item, folders: pytest.TempPathFactory) -> None:
        self._item = item
        self._folders = folders
        self._graphs = 0
        # A plugin may run a test a second time.
        item.stash[REPORTED], item.stash[GATED] = [], False

    def __repr__(self) -> str:
        return "<cudagraph>"

    @translated
    def __call__(self, entry: object, /, **options: object) -> Graph:
        """Capture an entry point in a separate process.

        ``entry`` is text as ``cgtool capture`` takes it, files from pytest's root or from the
        folder of the test; or a function at the top level of a module. Options are those of the
        command line (``input``, ``device``, ``warmup_iters``, ..., all fields of
        ``CaptureOptions``) and ``timeout``; they override those of the marker.

        Raises AssertionError where the code cannot be captured: its message is that of cgtool,
        with the user's line.
        """
        item = self._item
        arguments, budgets = self._marked(options)
        entry_named = named(entry, root_of(item.config), item.path.parent)
        workers = Workers(
            capture_options=arguments.capture_options,
            folder=self._folders.mktemp("cudagraph"),
            timeout=arguments.timeout,
            quiet=True,
            # Every gate says how long and how often.
            max_seconds=0.0,
            max_runs=0,
            entry=entry_named,
            times=not item.config.getoption("cudagraph_no_times"),
        )
        self._graphs += 1
        return Graph(item, self._graphs, workers, budgets)

    def _marked(self, options: Mapping[str, object]) -> Marked:
        """The markers, overridden by options, with the device if one was chosen."""
        # Read again: a fixture may have added a marker to the test.
        marked = self._item.stash[MARKED] = read(self._item)
        arguments = options_of(options, marked.options)
        if arguments.device is None:
            default = "cuda" if arguments.requires_gpu else None
            chosen = self._item.config.getoption("cudagraph_device") or default
            arguments = replace(arguments, device=chosen)
        return marked._replace(options=arguments)

    @translated
    def recording(self, *, device: str | None = None) -> AbstractContextManager[RecordedRun]:
        """Record the graphs that this process captures in a ``with`` block, as ``cgtool.recording``
        does::

            with cudagraph.recording() as run:
                engine.decode(batch=8)
            graph = run.graph(line="engine.py:88", batch=8)

        Without a GPU the test is skipped, unless the simulated device was chosen, which is then
        installed while the block runs; it fails if ``cuda`` was chosen.
        """
        chosen = self._marked({} if device is None else {"device": device}).options.device
        reason = None if chosen == "simulated" else why_no_gpu(self._item.config)
        if reason is not None and chosen is not None:
            raise machine(reason)
        if reason is not None:
            pytest.skip(f"no GPU: {reason}; --cudagraph-device simulated records without one")
        return self._recording(simulated=chosen == "simulated")

    @contextlib.contextmanager
    def _recording(self, *, simulated: bool) -> Iterator[RecordedRun]:
        __tracebackhide__ = True
        run = RecordedRun()
        file = self._folders.mktemp("cudagraph") / "run.cgt"
        with cgtool.recording(file, device="simulated" if simulated else None) as recording:
            yield run
        if recording.path is None:
            pytest.skip("this process is already recorded, by `cgtool run` or by another block")
        run.path, run.capture = recording.path, capture_file.read(recording.path)


class _TestedGraph(LoadedGraph):
    """Fails the test for a wrong selection; skips it where the device has nothing of the kind."""

    @translated
    def matching(self, terms: Sequence[str]) -> list[bool]:
        try:
            return super().matching(terms)
        except CgtoolError as error:
            if error.failure.exit_code == EXIT_MACHINE:
                pytest.skip(failure_text(error.failure))
            raise


class TestedCapture(LoadedCapture):
    """A capture whose graphs a test asserts on."""

    __test__ = False
    _graph_type = _TestedGraph

    @translated
    def graph(
        self, name: str | None = None, *, line: str | None = None, **facts: str | float
    ) -> LoadedGraph:
        """As of ``LoadedCapture.graph``. Raises AssertionError with the candidates."""
        try:
            return super().graph(name, line=line, **facts)
        except GraphNotFoundError as error:
            raise Unexpected(str(error)) from None


class RecordedRun(TestedCapture):
    """What ``cudagraph.recording()`` has recorded, once its block is over."""

    def __init__(self) -> None:
        self._raw = None

    def __getattr__(self, name: str) -> Any:
        __tracebackhide__ = True
        if name in ("path", "capture"):
            raise pytest.fail.Exception("the graphs are known when the block has ended")
        raise AttributeError(f"a recorded run has no attribute {name!r}")


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
            workers.capture_options = replace(workers.capture_options, device="simulated")

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
        return self._workers.file(0)

    @property
    def simulated(self) -> bool:
        """Whether there was no GPU: nodes are ops then, and nothing has a time."""
        return self.capture.environment.simulated

    def graph(self, name: str | None = None) -> LoadedGraph:
        """The captured graph of this name, ``forward``, to assert on its nodes."""
        return TestedCapture(self.path, self.capture).graph(name)

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

    @translated
    def verify(self, *, replays: int = 3, trials: int = 2) -> Report:
        """Check that replay equals eager, as ``cgtool verify`` does.

        Raises AssertionError with the table of what differs and why; also when eager differs so
        much from itself that replays cannot be judged.
        """
        arguments = {"replays": replays, "trials": trials}
        options = typed("graph.verify()", arguments, VerifyOptions)
        report = self._workers.verify(self.entry, options)
        report = replace(report, findings=(*report.findings, *noise_findings(report)))
        code = exit_code(report)
        if code == EXIT_OK:
            return report
        from cgtool.render.report_table import render_verify
        from cgtool.render.table import drawn

        verdict = f"cannot tell: {unanswered(report)}"
        if different := sum(not comparison.equal for comparison in report.comparisons):
            count = len(report.comparisons)
            verdict = f"replay differs from eager in {different} of {count} comparisons"
        elif code == EXIT_FOUND:
            findings = explain_findings(report.findings)
            errors = [finding.code for finding in findings if finding.severity == ERROR]
            verdict = f"replay is not eager: {', '.join(errors)}"
        raise Unexpected(f"{self.entry}: {verdict}\n{drawn(render_verify(report), WIDTH)}")

    @translated
    def check(self, *, allow: str | tuple[str, ...] | list[str] = ()) -> Report:
        """Find what would fail or be frozen in a capture, as ``cgtool check`` does.

        Raises AssertionError with every error and warning but those of the codes in ``allow``.
        """
        allowed = typed("graph.check()", {"allow": allow}, CheckArguments).allow
        allowed = (allowed,) if isinstance(allowed, str) else allowed
        for code in allowed:
            if page(code) is None:
                raise usage(f"graph.check(): unknown code {code!r}{nearest(code, codes())}")
        report = self._workers.check(self.entry)
        report = replace(
            report,
            findings=tuple(finding for finding in report.findings if finding.code not in allowed),
        )
        hazards = [finding for finding in explain_findings(report.findings) if is_hazard(finding)]
        if not hazards:
            return report
        from cgtool.render.report_table import render_check
        from cgtool.render.table import drawn

        names = ", ".join(dict.fromkeys(finding.code for finding in hazards))
        raise Unexpected(f"{self.entry}: {names}\n{drawn(render_check(report), WIDTH)}")

    @translated
    def gate(
        self,
        *,
        baseline: bool = True,
        max_runs: int = MAX_RUNS,
        max_seconds: float = MAX_SECONDS,
        **budgets: object,
    ) -> GateReport:
        """Compare the figures with budgets and with the test's baseline, as ``cgtool gate`` does.

        ``budgets`` are named as its options are, in the units of their names: ``max_nodes=400``,
        ``max_nodes={"backward": 300}``, ``min_speedup=1.5``, ``max_increase={"nodes": "2%"}``,
        ``max_regression="3%"``. They override those of the marker, which override
        ``[tool.cgtool.gate]`` in ``pyproject.toml``. Times are measured where a budget or the
        baseline has one, in at most ``max_runs`` processes, none begun after ``max_seconds``.

        Raises AssertionError with the evidence of every figure that fails. Skips the test when
        nothing could be judged.
        """
        arguments = {"baseline": baseline, "max_runs": max_runs, "max_seconds": max_seconds}
        options = typed("graph.gate()", arguments, GateArguments)
        self._workers.max_runs, self._workers.max_seconds = options.max_runs, options.max_seconds
        return Gate(self._item, self._number, self._workers, self.simulated).judge(
            budgets, self._budgets, baseline=options.baseline
        )


# --- what is captured


def named(entry: object, root: Path, folder: Path) -> NamedEntry:
    """``"model.py:build"`` (a file from ``root``, or else from ``folder``, where the test is),
    ``"package.module:build"``, or a function that a module has under its own name.

    Raises CgtoolError (exit 2) for what a worker process could not find.
    """
    if not isinstance(entry, str):
        return _of_object(entry, root)
    file, _, name = entry.rpartition(":")
    if not file.endswith(".py"):
        parse_entry(entry)
        return NamedEntry(entry, entry)
    for base in (root, folder):
        if is_file(path := base / file):
            return _in_file(path, name, root)
    raise usage(
        f"{entry}: no such file",
        why=f"looked in {root}" + (f" and in {folder}" if folder != root else ""),
        fix="name it from pytest's root, or from the folder of the test",
    )


def _in_file(path: Path, name: str, root: Path) -> NamedEntry:
    # Not resolved: users know the file by its link in the repository.
    full = Path(os.path.normpath(path))
    shown = full.relative_to(root) if full.is_relative_to(root) else full
    parse_entry(f"{full}:{name}")
    return NamedEntry(f"{full}:{name}", f"{shown.as_posix()}:{name}")


def _of_object(entry: object, root: Path) -> NamedEntry:
    name = getattr(entry, "__qualname__", None)
    if not callable(entry) or not isinstance(name, str):
        raise _unnamed(f"an object of type {type(entry).__name__}", "it cannot be imported by name")
    if "<lambda>" in name:
        raise _unnamed("a lambda", "it cannot be imported by name")
    if "<locals>" in name:
        inner = name.rpartition(".")[2]
        raise _unnamed(
            f"{inner}, which is defined inside a function",
            "its closure exists only in this process",
        )
    module = sys.modules.get(getattr(entry, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py"):
        raise _unnamed(f"{name}, which no Python file defines", "a worker process imports a file")
    value: object = module
    for piece in name.split("."):
        value = getattr(value, piece, None)
    if value is not entry:
        raise _unnamed(
            f"{name}, which is not what {file} has under that name", "it would find something else"
        )
    if not Path(file).is_relative_to(root):
        # Installed: in another folder on each machine.
        return NamedEntry(f"{entry.__module__}:{name}", f"{entry.__module__}:{name}")
    return _in_file(Path(file), name, root)


def _unnamed(argument: str, why: str) -> CgtoolError:
    return usage(
        f"cudagraph() was given {argument}",
        why=f"the capture runs in a separate process, which imports it by name, and {why}",
        fix='give a function at the top level of a module, or text: "model.py:build"',
    )
