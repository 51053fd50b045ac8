"""Writes the results and errors of all commands."""

from __future__ import annotations

import linecache
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cgtool.model.failure import Failure, usage
from cgtool.model.files import atomic, is_dir, is_file, is_special
from cgtool.model.finding import Finding
from cgtool.render.text import visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from cgtool.render.table import Screen, Table


_WIDTH = 100
"""Cells of a table in a pipe or a file."""


def console(*, stderr: bool) -> Console:
    """A rich console of the true width: the terminal's, or COLUMNS; into a pipe, tables have 100
    cells, and lines are as long as they are, for `grep` and the logs of CI."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    # COLUMNS may hold anything; containers without a terminal often have 0 there.
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() else 0
    if not width and stream.isatty():
        width = os.get_terminal_size(stream.fileno()).columns
    return Console(stderr=stderr, width=width or _WIDTH, highlight=False, soft_wrap=not width)


def show_table(renderable: RenderableType, output: Path | None, *, stderr: bool = False) -> None:
    """A rich renderable on standard output or standard error, or as plain text in a file."""
    if output is None:
        console(stderr=stderr).print(renderable)
        return
    from cgtool.render.table import drawn

    write_bytes(f"{drawn(renderable, _WIDTH, soft_wrap=True)}\n".encode(), output)


def show_report(
    name: str,
    report: Any,
    render: Callable[..., Screen],
    format_: str,
    output: Path | None,
    *,
    only: str | None = None,
    quiet: bool = False,
    stderr: bool = False,
    **options: Any,
) -> None:
    """Write the report in one format: JSON of the schema ``name``; the tables that ``render`` draws
    with these options, which ``quiet`` keeps from standard output, and ``stderr`` sends to standard
    error; or one table as CSV, with all of its rows. ``only``: the name of the one table to
    write."""
    if format_ == "json":
        from cgtool.render.json import encode

        if only is not None:
            raise usage("--table does not apply to JSON", why="JSON always holds the whole report")
        write_bytes(encode(name, report), output)
    elif format_ == "csv":
        if "rows" in options:
            options["rows"] = 0
        _show_csv(render(report, **options), output, only, quiet=quiet)
    elif output is not None or not quiet:
        from rich.console import Group

        screen = render(report, **options)
        shown = screen if only is None else Group(*_named(screen, only))
        show_table(shown, output, stderr=stderr)


def _show_csv(screen: Screen, output: Path | None, only: str | None, *, quiet: bool) -> None:
    """Write the table of this name as CSV, by default the first. Standard error then lists the
    other tables that have rows."""
    from cgtool.render.csv import encode_tables

    tables = _named(screen, only)
    write_bytes(encode_tables(tables), output)
    others = dict.fromkeys(table.name for table in screen.tables if table.rows)
    others.pop(tables[0].name, None)
    if only is None and others and not quiet:
        sys.stderr.write(f"wrote the table {tables[0].name}; others: --table {', '.join(others)}\n")


def _named(screen: Screen, only: str | None) -> list[Table[Any]]:
    """The tables of a screen with this name, by default that of the first. Raises CgtoolError (exit
    2) if there is none."""
    names = list(dict.fromkeys(table.name for table in screen.tables))
    if only not in (None, *names):
        raise usage(f"there is no table {only}", fix=f"--table {', '.join(names)}")
    return [table for table in screen.tables if table.name == (only or names[0])]


def check_places(written: Sequence[tuple[str, Path | None]], *read: str | Path) -> set[Path]:
    """Check, before anything is measured, that results can be written.

    ``written``: options with the files that they name. Returns those that exist, which will be
    replaced. Raises CgtoolError (exit 2) if a file cannot be written, or would overwrite what the
    command reads (a file, or the file of an ENTRY) or another result."""
    taken = {os.path.realpath(file): str(file) for file in map(file_of, map(str, read))}
    existing = set()
    for option, file in written:
        if file is None or is_special(file):
            continue
        if str(file) == "-":
            raise usage(
                f"`{option} -`: this result cannot go to standard output", fix=f"{option} FILE"
            )
        place = os.path.realpath(file)
        if place in taken:
            raise usage(f"{option} {file} would overwrite {taken[place]}", fix="name another file")
        if is_dir(file):
            raise usage(f"cannot write {file}: it is a directory", fix="name a file")
        try:
            exists = file.parent.is_dir()
            above = next(folder for folder in file.absolute().parents if folder.exists())
            is_blocked = not above.is_dir()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise usage(f"cannot write {file}: {reason}") from error
        if is_blocked:
            raise usage(
                f"cannot write {file}: {above} is a file, not a folder", fix="choose another path"
            )
        if not exists:
            raise usage(
                f"cannot write {file}: there is no folder {file.parent}",
                fix=f"mkdir -p {file.parent}",
            )
        saved = "the capture that is saved there"
        taken[place] = saved if option == "--save" else f"the output of {option}"
        if is_file(file):
            existing.add(file)
    return existing


def print_saved(path: Path, *, replaced: bool) -> None:
    """Where a result is, on standard error; and whether there was a file of that name before."""
    before = " (replaced the file that was there)" if replaced else ""
    sys.stderr.write(f"saved {visible(str(path))}{before}\n")


def file_of(target: str) -> Path:
    """The file that a target is, or that an ENTRY (``path/to/file.py:name``) is in."""
    path = Path(target)
    return path if is_file(path) else Path(target.rpartition(":")[0] or target)


def write_bytes(data: bytes, output: Path | None) -> None:
    """Write to a file, all or nothing, or to standard output."""
    if output is None:
        # Keep the order of everything printed before.
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        return
    if is_special(output):
        try:
            output.write_bytes(data)
        except BrokenPipeError:
            pass  # its reader has what it wanted
        except OSError as error:
            raise usage(f"cannot write {output}: {error.strerror}") from error
        return
    with atomic(output) as temporary:
        temporary.write_bytes(data)


_SHOWN_FRAMES = 6
_LONGEST_LINE = 1000


def _shown(text: str) -> str:
    """One line of a message, cut: generated names and data in an error may be very long."""
    text = visible(text[: _LONGEST_LINE + 1])
    return text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]}…"


def show_failure(failure: Failure) -> None:
    """What is wrong, where, why and how to fix it, on standard error."""
    lines = [f"cgtool: {_shown(failure.message)}"]
    for number, frame in enumerate(failure.frames[:_SHOWN_FRAMES]):
        if not frame.file:
            # Rounds of a recursion that were left out.
            lines.append(f"  {visible(frame.function)}")
            continue
        lead = "  at " if number == 0 else "  from "
        lines.append(f"{lead}{visible(frame.file)}:{frame.line} in {_shown(frame.function)}")
        source = linecache.getline(frame.file, frame.line).strip()
        if source:
            lines.append(f"       {_shown(source)}")
    for word, text in (("why", failure.why), ("fix", failure.fix)):
        if text:
            first, *rest = text.splitlines()
            lines.append(f"  {word}: {_shown(first)}")
            lines += [f"       {_shown(line)}" for line in rest]
    if failure.findings:
        lines += _shown_findings(failure.findings, of_script=failure.phase == "script")
    sys.stderr.write("\n".join(lines) + "\n")


def _shown_findings(findings: Sequence[Finding], *, of_script: bool) -> list[str]:
    """One a line: what was found in a script before it failed, or the code of the cause and the
    other findings of a dry run."""
    from cgtool.analysis.reports import explain_findings

    first, *more = explain_findings(findings[:1]) + explain_findings(findings[1:])
    lines = [f"  code: {first.code} (cgtool explain {first.code})"]
    if of_script:
        lines, more = ["  found before that:"], [first, *more]
    elif more:
        lines.append(
            f"  and {len(more)} more, found by a dry run (`cgtool check` shows them in full):"
        )
    for finding in more:
        place = finding.place
        where = f"{visible(place.file)}:{place.line}" if place else "no line"
        lines.append(f"    {finding.severity} {finding.code} at {where}")
        source = linecache.getline(place.file, place.line).strip() if place else ""
        if source:
            lines.append(f"       {_shown(source)}")
    return lines


def show_bug(error: BaseException) -> None:
    """Report a bug in cgtool: one sentence, and the traceback in a file."""
    text = "".join(traceback.format_exception(error))
    if os.environ.get("CGTOOL_DEBUG"):
        sys.stderr.write(text)
        return
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="cgtool-bug-", suffix=".txt", delete=False
        ) as file:
            file.write(text)
    except OSError:
        sys.stderr.write(text)
        return
    last_line = text.strip().rpartition("\n")[2]
    sys.stderr.write(
        f"cgtool: this is a bug in cgtool, not in your code: {visible(last_line)}\n"
        f"  please report it with {file.name}\n"
    )
