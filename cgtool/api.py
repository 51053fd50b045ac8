"""The Python API: what the commands show, as objects. docs/api.md shows how to use it.

``cgtool.load`` reads a file, ``cgtool.diff`` compares two, ``cgtool.report`` writes their page,
``cgtool.check`` checks an ENTRY or a script. Each object prints as its command does, and is a table
in a notebook. PyTorch is not imported here.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import msgspec

from cgtool.analysis.graph.places import NodeDescriber
from cgtool.analysis.reports import ExplainedFinding, explain_findings, is_hazard
from cgtool.analysis.units import count_text
from cgtool.loaded_graph import SHOWN, node_row, visible_lines
from cgtool.loaded_graph import EdgeRow as EdgeRow
from cgtool.loaded_graph import LoadedGraph as LoadedGraph
from cgtool.loaded_graph import NodeRow as NodeRow
from cgtool.loaded_graph import Relation as Relation
from cgtool.loaded_graph import Rows as Rows
from cgtool.loaded_graph import Selection as Selection
from cgtool.model import capture_file
from cgtool.model.capture import Capture
from cgtool.model.failure import EXIT_FOUND, EXIT_OK, usage
from cgtool.model.files import path_of
from cgtool.model.finding import Report
from cgtool.model.options import CaptureOptions, VerifyOptions, unexpected

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cgtool.analysis.diff.compare import Diff
    from cgtool.analysis.pools import PoolRow, ProgramPoolRow
    from cgtool.cli.options import WorkerOptions

Subject = TypeVar("Subject", bound=msgspec.Struct)


class GraphNotFoundError(KeyError):
    """No graph, or more than one, is meant."""

    __str__ = Exception.__str__  # that of KeyError quotes line breaks


class LoadedCapture:
    """A file of ``cgtool capture``, ``profile``, ``bench`` or ``run``, or what ``cgtool.capture``
    captured."""

    _graph_type: type[LoadedGraph] = LoadedGraph

    def __init__(self, path: Path, capture: Capture, raw: Mapping[str, str] | None = None) -> None:
        """``raw``: the driver's own texts by name, of a capture without a file."""
        self.path = path
        """The file; the name of the function or the ENTRY if there is none."""
        self.capture = capture
        """Everything in the file: docs/capture-format.md."""
        self._raw = raw

    @cached_property
    def graphs(self) -> tuple[LoadedGraph, ...]:
        """In the order of their capture; graphs inside nodes come last."""
        describer = NodeDescriber(self.capture)
        graphs: list[LoadedGraph] = []
        for index, graph in enumerate(self.capture.graphs):
            rows = [node_row(graph, node, describer) for node in graph.nodes]
            graphs.append(self._graph_type(self.capture, index, rows, graphs))
        return tuple(graphs)

    def graph(
        self, name: str | None = None, *, line: str | None = None, **facts: str | float
    ) -> LoadedGraph:
        """The graph of this name: ``forward``. Of a recorded program also by the ``line`` that
        captured it, or called what did (``engine.py:88``), by its ``owner`` and ``key`` in the
        ledger, its ``number`` in its process, and numbers that the program noted: ``batch=8``.
        Raises KeyError with the candidates if none or several match, CgtoolError for a bad line."""
        from cgtool.analysis.graph_choice import chosen, listed

        given = facts if name is None else {"name": name, **facts}
        found = chosen(self.capture, line, given)
        if len(found) == 1:
            return self.graphs[found[0]]
        shown = given if line is None else {"line": line, **given}
        terms = ", ".join(f"{term}={value!r}" for term, value in shown.items())
        head = f"{count_text(len(found), 'graph')}{' with ' if terms else ''}{terms}"
        there = ":" if found else "; there are:" if self.graphs else "; there is none"
        text = f"{head}{there}{listed(self.capture, found or range(len(self.graphs)))}"
        raise GraphNotFoundError(visible_lines(text))

    @cached_property
    def nodes(self) -> Rows[NodeRow]:
        """The nodes of all graphs."""
        return Rows([row for graph in self.graphs for row in graph.nodes], NodeRow, "node")

    @cached_property
    def pools(self) -> Rows[PoolRow] | Rows[ProgramPoolRow]:
        """The memory pools: the rows of ``cgtool pools``. Both kinds have ``name`` and
        ``reserved_bytes``."""
        from cgtool.analysis.pools import PoolRow, ProgramPoolRow, pool_rows, program_pools

        if (ledger := self.capture.ledger) is not None:
            return Rows(program_pools(self.capture, ledger), ProgramPoolRow, "pool")
        return Rows(pool_rows(self.capture), PoolRow, "pool")

    @cached_property
    def findings(self) -> tuple[ExplainedFinding, ...]:
        """Findings on a program that ``cgtool run`` recorded; for an ENTRY, call
        ``cgtool.check``."""
        if self.capture.ledger is None:
            return ()
        from cgtool.analysis.ledger_findings import ledger_findings

        return explain_findings(ledger_findings(self.capture))

    def report(self, file: str | os.PathLike[str] = "report.html") -> Path:
        """Write the page of ``cgtool report``."""
        return report(self, file=file)

    def save(self, file: str | os.PathLike[str]) -> Path:
        """Write it as a ``.cgt`` file, which every command reads. Raises CgtoolError."""
        target = path_of(file, "save() takes the path of a .cgt file")
        raw = self._raw
        if raw is None:
            raw = capture_file.raw_texts(self.path, self.capture)
        capture_file.write(target, self.capture, raw)
        return target

    def _screen(self) -> RenderableType:
        if self.capture.ledger is not None:
            from cgtool.analysis.ledger_report import ledger_report
            from cgtool.render import ledger_table

            return ledger_table.render(ledger_report(self.capture))
        from cgtool.analysis.graph.summary import summarize
        from cgtool.render import summary_table

        return summary_table.render(summarize(self.capture))

    def __repr__(self) -> str:
        graphs = count_text(len(self.capture.graphs), "graph")
        nodes = count_text(sum(len(graph.nodes) for graph in self.capture.graphs), "node")
        return f"<capture {self.path}: {graphs}, {nodes}, {self.capture.environment.device}>"

    def __str__(self) -> str:
        return _text(self._screen())

    def _repr_html_(self) -> str:
        return _preformatted(self._screen())


class Result(Generic[Subject]):
    """The report of a command, and how the command shows it."""

    def __init__(
        self,
        schema: str,
        report: Subject,
        render: Callable[[Subject], RenderableType],
        summary: str,
    ) -> None:
        # The function, not what it returns: that cannot be pickled.
        self._schema, self._render, self.summary = schema, render, summary
        self.report = report
        """The report as a typed object; the same fields as the JSON of the command."""

    def to_dict(self) -> Mapping[str, Any]:
        """The JSON of the command."""
        from cgtool.render.json import encode

        decoded: dict[str, Any] = msgspec.json.decode(encode(self._schema, self.report))
        return decoded

    def __repr__(self) -> str:
        return f"<{self._schema.partition('-')[2]}: {self.summary}>"

    def __str__(self) -> str:
        return _text(self._render(self.report))

    def _repr_html_(self) -> str:
        return _preformatted(self._render(self.report))


class CheckResult(Result[Report]):
    """The report of ``cgtool check``."""

    @property
    def findings(self) -> tuple[ExplainedFinding, ...]:
        """With their severity, place and fix; the worst first."""
        return explain_findings(self.report.findings)


class VerifyResult(CheckResult):
    """What ``cgtool verify`` found."""

    def __init__(self, report: Report) -> None:
        from cgtool.analysis.reports import noise_findings
        from cgtool.render.report_table import conclusion, render_verify

        findings = (*report.findings, *noise_findings(report))
        report = msgspec.structs.replace(report, findings=findings)
        text = conclusion(report, explain_findings(findings)).plain
        super().__init__("cgtool-verify", report, render_verify, text)

    @property
    def equal(self) -> bool | None:
        """Whether replays compute what eager computes; None if `verify` has no answer."""
        from cgtool.analysis.reports import exit_code

        return {EXIT_OK: True, EXIT_FOUND: False}.get(exit_code(self.report))


CaptureOrFile: TypeAlias = LoadedCapture | str | os.PathLike[str]


def load(path: str | os.PathLike[str]) -> LoadedCapture:
    """Load a ``.cgt`` file. Raises CgtoolError if it is not one."""
    file = path_of(path, "load() takes the path of a .cgt file")
    return LoadedCapture(file, capture_file.read(file))


def _loaded(capture: CaptureOrFile, call: str) -> LoadedCapture:
    if isinstance(capture, LoadedCapture):
        return capture
    return load(path_of(capture, f"{call} takes the path of a .cgt file, or what load() returned"))


def diff(a: CaptureOrFile, b: CaptureOrFile) -> Result[Diff]:
    """Compare two captures, as ``cgtool diff`` does; ``.report.different`` says if they differ."""
    from cgtool.analysis.diff.compare import compare
    from cgtool.render.diff_table import render

    first, second = _loaded(a, "diff()"), _loaded(b, "diff()")
    names = (str(first.path), str(second.path))
    report = compare(first.capture, second.capture, names=names)
    return Result("cgtool-diff", report, partial(render, rows=SHOWN), report.summary)


def report(
    a: CaptureOrFile,
    b: CaptureOrFile | None = None,
    *,
    file: str | os.PathLike[str] = "report.html",
) -> Path:
    """Write the page of ``cgtool report``: one capture, or what changed from ``a`` to ``b``.

    Returns the path of the page. Raises CgtoolError if the captures cannot be read or compared, and
    if ``file`` cannot be written, is one of them, or is a source file that the page shows.
    """
    from cgtool.cli.output import check_places, write_bytes
    from cgtool.html.report import check_page, html

    target = path_of(file, "report(file=...) takes the path of the page")
    captures = [_loaded(capture, "report()") for capture in ((a,) if b is None else (a, b))]
    check_places([("file", target)], *(capture.path for capture in captures))
    check_page(target, (each.capture for each in captures))
    write_bytes(html([(str(capture.path), capture.capture) for capture in captures]), target)
    return target


def check(
    entry: str | os.PathLike[str], *, timeout: float | None = None, **options: Any
) -> CheckResult:
    """Check an ENTRY or a script, as ``cgtool check`` does, in a separate process.

    ``options`` are those of ``cgtool.model.options.CaptureOptions``: ``device="simulated"``. Raises
    TypeError for an option that does not exist; CgtoolError for an invalid value, if the code
    cannot be loaded or run, and after ``timeout`` seconds.
    """
    from cgtool.cli.workers import report_of
    from cgtool.model.jobs import check_job
    from cgtool.render.report_table import render_check

    path_of(entry, "check() takes an ENTRY (file.py:name) or the path of a script")
    worker = _worker_options("check", {"timeout": timeout, **options})
    report = report_of(check_job(os.fspath(entry), worker.capture_options), worker)
    if report.interrupted:
        raise KeyboardInterrupt
    hazards = sum(map(is_hazard, explain_findings(report.findings)))
    return CheckResult("cgtool-check", report, render_check, count_text(hazards, "hazard"))


def capture_entry(entry: str, options: dict[str, Any]) -> LoadedCapture:
    """``cgtool.capture`` of an ENTRY, with the options of ``check``."""
    from cgtool.cli.workers import capture_of
    from cgtool.model.jobs import CaptureJob

    worker = _worker_options("capture", options)
    with tempfile.TemporaryDirectory(prefix="cgtool-") as folder:
        file = Path(folder) / "capture.cgt"
        captured = capture_of(CaptureJob(entry, worker.capture_options), file, worker)
        return LoadedCapture(Path(entry), captured, capture_file.raw_texts(file, captured))


def verify_entry(entry: str, options: dict[str, Any]) -> VerifyResult:
    """``cgtool.verify`` of an ENTRY, with the options of ``check``, ``replays`` and ``trials``."""
    from cgtool.cli.workers import report_of
    from cgtool.model.jobs import VerifyJob

    own = {name: options[name] for name in VerifyOptions.__struct_fields__ if name in options}
    try:
        trials = msgspec.convert(own, VerifyOptions)
    except msgspec.ValidationError as error:
        raise usage(f"verify(): {error}") from None
    others = {name: value for name, value in options.items() if name not in own}
    worker = _worker_options("verify", others)
    return VerifyResult(report_of(VerifyJob(entry, worker.capture_options, trials), worker))


def _worker_options(call: str, options: dict[str, Any]) -> WorkerOptions:
    """Raises TypeError for an option that does not exist, CgtoolError for an invalid value."""
    from cgtool.analysis.gate.budgets import nearest
    from cgtool.cli.options import WorkerOptions

    options = dict(options)
    timeout = options.pop("timeout", None)
    for name in options.keys() - CaptureOptions.__struct_fields__:
        near = nearest(name, CaptureOptions.__struct_fields__)
        raise TypeError(f"{call}() has no option {name!r}{near}")
    settings = CaptureOptions(**options)
    for name, value in options.items():
        if isinstance(value, str) and isinstance(getattr(CaptureOptions(), name), tuple):
            settings = msgspec.structs.replace(settings, **{name: (value,)})
        elif expected := unexpected(name, value):
            raise usage(f"{name}={value!r}: expected {expected}")
    if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
        raise usage(f"timeout={timeout!r}: expected a number of seconds above 0")
    return WorkerOptions(settings, timeout, quiet=True)


def _text(screen: RenderableType) -> str:
    from cgtool.render.table import drawn

    return drawn(screen, 100)


def _preformatted(screen: RenderableType) -> str:
    return f"<pre>{escape(_text(screen))}</pre>"
