"""The screens of the commands that report: ``check``, ``verify``, ``explain`` and ``doctor``.

Findings have the shape of rustc and ruff::

error[sync-item]: tensor value read on the host
  --> model.py:14 in fn (forward)
   |
14 |     scale = x.max().item()
   |             ^^^^^^^^^^^^^^
   = why: reading a tensor value on the host is not permitted during capture
   = fix: keep the value on the device and read it after the replay
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, ClassVar

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markdown import ListItem, Markdown
from rich.segment import Segment
from rich.text import Text

from cgtool.analysis.reports import (
    ExplainedFinding,
    comparison_rows,
    difference_of,
    difference_text,
    exit_code,
    explain_findings,
    place_of,
    unanswered,
)
from cgtool.analysis.stepped import ModuleValues, values_by_module
from cgtool.analysis.units import figure_text
from cgtool.findings import Page, Pages
from cgtool.model.capture import Frame
from cgtool.model.failure import EXIT_FOUND, EXIT_UNKNOWN
from cgtool.model.finding import (
    ERROR,
    NOTE,
    SEVERITIES,
    Capability,
    Comparison,
    Finding,
    NodeValues,
    Report,
)
from cgtool.render.table import BAD, GOOD, WARNING, Column, Hanging, Screen, Table, plain
from cgtool.render.text import shown_file, underlined

_STYLE = {ERROR: BAD, "warning": WARNING, NOTE: "cyan"}
_SHOWN_CALLS = 3

# --- check


COLUMNS: Sequence[Column[ExplainedFinding]] = (
    Column("severity"),
    Column("code"),
    Column("what is wrong", "title"),
    Column("file", lambda finding: finding.place and finding.place.file),
    Column("line", lambda finding: finding.place and finding.place.line),
    Column("module"),
    Column("phase"),
    Column("times"),
    Column("why", "reason"),
    Column("fix"),
    Column("graphs", lambda finding: " ".join(map(str, finding.graphs)), optional=True),
)


class Findings(Table[ExplainedFinding]):
    """Findings, the worst first. A terminal shows a block for each, CSV a line."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("Findings", COLUMNS, explain_findings(findings), name="findings")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for number, finding in enumerate(self.rows):
            yield from ("", _block(finding)) if number else (_block(finding),)


def render_check(report: Report) -> Screen:
    """The screen of ``cgtool check``."""
    screen = _checked(report)
    screen.parts += _remarks(report)
    return screen


def _checked(report: Report) -> Screen:
    """The entry, its findings, and how many there are."""
    screen, environment = Screen(), report.environment
    head = plain(report.entry.spec, "bold")
    if environment.simulated:
        head.append_text(plain("  on the simulated device", WARNING))
    else:
        head.append_text(plain(f"  on {environment.device}"))
    findings = Findings(report.findings)
    screen.parts.append(head)
    screen.add(findings)
    screen.parts += ["", _count(findings.rows)]
    return screen


def _count(findings: Sequence[ExplainedFinding]) -> Text:
    """``2 errors, 1 note`` in the color of the worst."""
    if not findings:
        return plain("no findings", GOOD)
    count = Counter(finding.severity for finding in findings)
    parts = [
        f"{count[severity]} {severity}{'s' if count[severity] > 1 else ''}"
        for severity in SEVERITIES
        if count[severity]
    ]
    return plain(", ".join(parts), f"bold {_STYLE[findings[0].severity]}")


def _remarks(report: Report, but: str | None = None) -> list[RenderableType]:
    lines = [f"note: {note.text}" for note in report.notes if note.text != but]
    if report.looked_at:
        lines.insert(0, "checked: " + "; ".join(report.looked_at))
    return [plain(line, "dim") for line in lines]


def _block(finding: ExplainedFinding) -> RenderableType:
    parts: list[RenderableType] = [_head(finding.severity, finding.code, finding.title)]
    gutter = 2
    if finding.place is not None:
        gutter = max(gutter, len(str(finding.place.line)))
        place = plain(_frame(finding.place), "cyan")
        place.append_text(plain(_details(finding), "dim"))
        parts.append(Hanging(plain(f"{'':>{gutter}}--> ", "dim"), place))
        parts += _source(finding, finding.place.line, gutter)
    notes = [("called from", _frame(frame), "") for frame in finding.chain[:_SHOWN_CALLS]]
    if finding.library is not None:
        notes.append(("in library", _frame(finding.library), ""))
    if forward := place_of(finding.forward):
        source = finding.forward_source.strip()
        line = f"{_frame(forward)}{': ' if source else ''}{source}"
        notes.append(("backward of", line, ""))
    notes.append(("why", finding.reason, ""))
    notes += [("note", text, "dim") for text in finding.evidence]
    if finding.fix:
        notes.append(("fix", finding.fix, GOOD))
    parts += [
        Hanging(plain(f"{'':>{gutter}} = {name}: ", "dim"), plain(text, style))
        for name, text, style in notes
    ]
    return Group(*parts)


def _head(severity: str, code: str, title: str) -> Text:
    head = plain(severity, f"bold {_STYLE.get(severity, '')}")
    return head.append_text(plain(f"[{code}]: {title}", "bold"))


def _details(finding: ExplainedFinding) -> str:
    """`` (forward, module layers.0, 3 times)``."""
    details = []
    if finding.phase:
        details.append(finding.phase.removeprefix("capture "))
    if finding.module is not None:
        details.append(f"module {finding.module or '(root)'}")
    if finding.times > 1:
        details.append(f"{finding.times} times")
    return f" ({', '.join(details)})" if details else ""


def _frame(frame: Frame) -> str:
    return f"{shown_file(frame.file)}:{frame.line} in {frame.function}"


def _source(finding: ExplainedFinding, number: int, gutter: int) -> list[RenderableType]:
    """The source line with carets below the expression; nothing if it is not known."""
    line, columns = finding.source.strip(), finding.columns
    if not line:
        return []
    bar = plain(f"{'':>{gutter}} |", "dim")
    lead = plain(f"{number:>{gutter}} |     ", "dim")
    lines: list[RenderableType] = [bar, Hanging(lead, plain(line))]
    span = underlined(finding.source, columns) if columns is not None else None
    if span is not None and line.isprintable():
        first, characters = span
        carets = bar.copy().append(" " * (5 + cell_len(line[:first])))
        carets.append("^" * cell_len(line[first : first + characters]), BAD)
        carets.no_wrap, carets.overflow = True, "crop"
        lines.append(carets)
    return lines


# --- verify


def render_verify(report: Report, *, explain: bool = False) -> Screen:
    """The screen of ``cgtool verify``: the verdict, the findings, and the compared tensors; with
    ``explain`` also what the headings mean."""
    screen = Screen(simulated=report.environment.simulated, explain=explain)
    findings = Findings(report.findings)
    screen.parts.append(conclusion(report, findings.rows))
    screen.add(findings)
    title = f"Replay compared with eager, {report.entry.spec}"
    screen.table(title, COMPARISONS, comparison_rows(report.comparisons), name="comparisons")
    screen.tables.reverse()  # the first is what CSV has
    screen.legend()
    screen.parts += ["", *_remarks(report, but=unanswered(report))]
    return screen


def _optional_figure_text(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _relative_text(value: float | None) -> str:
    if value is None:
        return ""
    if value < 1e-4:
        return f"{value:.1e}"
    return f"{value:.2%}" if value < 10 else f"{value:.3g}x"


COMPARISONS: Sequence[Column[Comparison]] = (
    Column("tensor", "name"),
    Column("trial"),
    Column(
        "verdict",
        lambda row: "bit-identical" if row.exact else "equal" if row.equal else "differs",
        wrap="never",
        style=lambda row: GOOD if row.equal else BAD,
    ),
    Column(
        "difference",
        difference_of,
        difference_text,
        numeric=True,
        explanation="largest absolute difference between replay and eager",
    ),
    Column(
        "relative",
        lambda row: row.relative if not row.equal and row.relative else None,
        _relative_text,
        optional=True,
        priority=2,
        explanation="difference over the largest value of eager",
    ),
    Column(
        "eager noise",
        "noise",
        _optional_figure_text,
        zero=False,
        optional=True,
        priority=3,
        explanation="largest absolute difference between two eager runs",
    ),
    Column(
        "error",
        "error",
        _optional_figure_text,
        optional=True,
        explanation="difference between replay and a float64 run of eager",
    ),
    Column(
        "eager error",
        "eager_error",
        _optional_figure_text,
        optional=True,
        explanation="difference between eager and a float64 run of eager",
    ),
    Column(
        "tolerance",
        format=_optional_figure_text,
        zero=False,
        optional=True,
        priority=1,
        explanation="largest difference, or error if there is one, that counts as equal",
    ),
)


def conclusion(report: Report, findings: Sequence[ExplainedFinding]) -> Text:
    """The verdict, and on failure its cause with the line, in one sentence."""
    code, count = exit_code(report), len(report.comparisons)
    if code == EXIT_FOUND:
        different = sum(not comparison.equal for comparison in report.comparisons)
        text = "not verified"
        if different:
            text += f": {different:,} of {count:,} comparisons differ"
        cause = next((each for each in findings if each.severity != NOTE), None)
        if cause is not None:
            text += f", because of: {cause.title}" if different else f": {cause.title}"
            if cause.place is not None:
                text += f" ({shown_file(cause.place.file)}:{cause.place.line})"
        return plain(text, f"bold {BAD}")
    if code == EXIT_UNKNOWN:
        return plain(f"cannot tell: {unanswered(report)}", f"bold {WARNING}")
    return plain(f"verified: {count:,} comparisons, replay equals eager", f"bold {GOOD}")


# --- debug


def render_debug(report: Report, *, depth: int | None = None, explain: bool = False) -> Screen:
    """The screen of ``cgtool debug``: findings, and what each module has written."""
    screen, simulated = _checked(report), report.environment.simulated
    screen.parts.append("")
    screen.include(render_values(report.values, depth, simulated=simulated, explain=explain))
    screen.parts += ["", *_remarks(report)]
    return screen


def render_values(
    values: Sequence[NodeValues],
    depth: int | None = None,
    *,
    simulated: bool,
    explain: bool = False,
) -> Screen:
    """What ops have written: a row for each module."""
    screen = Screen(simulated=simulated, explain=explain)
    title = "Values that ops wrote in the first replay"
    screen.table(title, VALUES, values_by_module(values, depth), name="values")
    screen.legend()
    return screen


VALUES: Sequence[Column[ModuleValues]] = (
    Column("graph", priority=2),
    Column("module"),
    Column("ops", priority=1),
    Column(
        "writes", priority=4, explanation="what its ops write; of several shapes only the types"
    ),
    Column("least", "minimum", figure_text, numeric=True),
    Column("largest", "maximum", figure_text, numeric=True),
    Column(
        "rms", format=figure_text, numeric=True, priority=1, explanation="root of the mean square"
    ),
    Column("zeros", "zeros_share", priority=3),
    Column("NaN", "nans", style=lambda row: BAD if row.nans else ""),
    Column("infinite", "infinities"),
)


# --- explain


def render_page(page: Page) -> RenderableType:
    """The screen of ``cgtool explain CODE``: head, text and examples."""
    head = page.head
    return Group(
        _head(head.severity, page.code, head.title),
        plain(f"category: {head.category}; goes wrong at: {head.phase}", "dim"),
        plain(f"fix: {head.fix}"),
        plain(_found_by("a GPU", head.gpu), "dim"),
        plain(_found_by("the simulated device", head.simulated), "dim"),
        "",
        _Page(page.text, code_theme="ansi_dark"),
    )


class _Item(ListItem):
    """An item of a list. Where lines are as long as they are, rich would cut it."""

    def render_bullet(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return _uncut(super().render_bullet, console, options)

    def render_number(
        self, console: Console, options: ConsoleOptions, number: int, last_number: int
    ) -> RenderResult:
        return _uncut(super().render_number, console, options, number, last_number)


def _uncut(
    render: Callable[..., RenderResult], console: Console, options: ConsoleOptions, *numbers: int
) -> RenderResult:
    if not options.no_wrap:
        yield from render(console, options, *numbers)
        return
    segments: Any = render(console, options.update(width=_LONGEST_ITEM), *numbers)
    for line in Segment.split_lines(segments):
        yield Text("".join(segment.text for segment in line).rstrip())


class _Page(Markdown):
    elements: ClassVar = {**Markdown.elements, "list_item_open": _Item}


_LONGEST_ITEM = 10_000
"""Characters."""


def _found_by(device: str, command: str) -> str:
    if command.startswith("no:"):
        return f"not found on {device}: {command.removeprefix('no:').strip()}"
    return f"found on {device} by: cgtool {command}"


PAGES: Sequence[Column[Page]] = (
    Column("code", wrap="never"),
    Column("what is wrong", "head.title"),
)


def render_pages(pages: Pages) -> Screen:
    """The screen of ``cgtool explain``: all codes, by category."""
    screen = Screen()
    ordered = sorted(pages.codes, key=lambda page: (page.head.category, page.code))
    for category, members in groupby(ordered, key=lambda page: page.head.category):
        screen.table(category, PAGES, list(members), name="codes", part=("category", category))
    return screen


# --- doctor

_STATES = {"available": GOOD, "degraded": WARNING, "absent": BAD}

CAPABILITIES: Sequence[Column[Capability]] = (
    Column("feature", "name", narrowest=20),
    Column("state", wrap="never", style=lambda row: _STATES[row.state]),
    Column("how", narrowest=24),
    Column("how to get it", lambda row: row.remedy or "", narrowest=20),
)


def render_doctor(capabilities: Sequence[Capability]) -> Screen:
    """The screen of ``cgtool doctor``: one row per feature."""
    screen = Screen()
    screen.table("This machine", CAPABILITIES, capabilities, name="features")
    return screen
