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


def console(*, stderr: bool = False) -> Console:
    """A rich console of the true width: the terminal's, or COLUMNS, or 100 into a pipe."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    # COLUMNS may hold anything; containers without a terminal often have 0 there.
    columns = os.environ.get("COLUMNS", "")
    width = None
    if not (columns.isdecimal() and int(columns) > 0):
        width = (stream.isatty() and os.get_terminal_size(stream.fileno()).columns) or 100
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=False)


def show_table(renderable: RenderableType, output: Path | None, *, stderr: bool = False) -> None:
    """A rich renderable on standard output or standard error, or as plain text in a file."""
    if output is None:
        console(stderr=stderr).print(renderable)
        return
    from io import StringIO

    from rich.console import Console

    buffer = StringIO()
    Console(file=buffer, width=120, highlight=False, color_system=None).print(renderable)
    write_bytes(buffer.getvalue().encode(), output)


def show_report(
    name: str,
    report: Any,
    render: Callable[[], RenderableType],
    format_: str,
    output: Path | None,
    *,
    quiet: bool = False,
) -> None:
    """The report as JSON of the schema ``name``, or as a table, which ``quiet`` keeps from standard
    output."""
    if format_ == "json":
        from cgtool.render.json import encode

        write_bytes(encode(name, report), output)
    elif output is not None or not quiet:
        show_table(render(), output)


def check_places(written: Sequence[tuple[str, Path | None]], *read: str | Path) -> None:
    """Raises CgtoolError (exit 2) where a result, given with its option, would overwrite what the
    command reads (a file, or the file of an ENTRY) or another result, and where it cannot be
    written: before anything is measured for it."""
    taken = {os.path.realpath(file): str(file) for file in map(file_of, map(str, read))}
    for option, file in written:
        if file is None or is_special(file):
            continue
        place = os.path.realpath(file)
        if place in taken:
            raise usage(f"{option} {file} would overwrite {taken[place]}", fix="name another file")
        if is_dir(file):
            raise usage(f"cannot write {file}: it is a directory", fix="name a file")
        try:
            exists = file.parent.is_dir()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise usage(f"cannot write {file}: {reason}") from error
        if not exists:
            raise usage(
                f"cannot write {file}: there is no folder {file.parent}",
                fix=f"mkdir -p {file.parent}",
            )
        saved = "the capture that is saved there"
        taken[place] = saved if option == "--save" else f"the output of {option}"


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
        lines += _shown_findings(failure.findings)
    sys.stderr.write("\n".join(lines) + "\n")


def _shown_findings(findings: Sequence[Finding]) -> list[str]:
    """The code of the cause, and the other findings of a dry run, one a line."""
    from cgtool.analysis.reports import explain_findings

    first, *more = explain_findings(findings[:1]) + explain_findings(findings[1:])
    lines = [f"  code: {first.code} (cgtool explain {first.code})"]
    if more:
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
