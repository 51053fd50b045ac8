"""``cgtool run``: the CUDA graphs of a program that captures them itself."""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from cgtool.analysis.units import count_text
from cgtool.cli import options as opt
from cgtool.model.failure import CgtoolError, usage
from cgtool.model.files import is_dir, is_file
from cgtool.model.part_files import COMMAND, LOG, Command

EPILOG = """PROGRAM is `train.py ARGS...`, `-m package.module ARGS...`, or after `--` any command
that ends in Python processes: `cgtool run -- torchrun --nproc-per-node 2 train.py`. A saved .cgt
file of a run is shown again; of a run that was not finished, because cgtool was killed, PROGRAM is
the folder .cgtool-run-... that is left. The exit code is that of the program."""


def run(
    *,
    program: Annotated[
        list[str], typer.Argument(metavar="PROGRAM [ARGS]...", help="The program to run.")
    ],
    output: opt.Output = None,
    format_: opt.FormatOption = opt.Format.TABLE,
    device: Annotated[
        str | None,
        typer.Option(help="`simulated`: no GPU; by default a GPU if there is one."),
    ] = None,
    graphs: Annotated[bool, typer.Option("--graphs", help="A row for each graph.")] = False,
    rows: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Rows of the table, and findings; 0 shows all."),
    ] = 20,
    explain: opt.Explain = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no table.")] = False,
) -> None:
    """Run PROGRAM as it is, and keep a ledger of every CUDA graph that its processes make."""
    from cgtool.analysis.ledger import merge
    from cgtool.analysis.ledger_report import ledger_report
    from cgtool.cli.output import check_places, show_report, show_table
    from cgtool.model import capture_file
    from cgtool.render.ledger_table import render
    from cgtool.worker.program import run_program

    if device not in (None, "simulated"):
        raise usage(f"device `{device}` is not `simulated`", fix="leave out --device for a GPU")
    if program[0].endswith(".cgt"):
        capture = capture_file.read(Path(program[0]))
        if capture.ledger is None:
            raise usage(
                f"{program[0]} has no program in it",
                why="an ENTRY was captured",
                fix=f"cgtool dump {program[0]}",
            )
        report = ledger_report(capture)
        table = partial(render, report, graphs=graphs, rows=rows, explain=explain)
        show_report("cgtool-ledger", report, table, format_, output, quiet=quiet)
        return
    folder = Path(program[0])
    if is_dir(folder):
        command, status = _unfinished(folder), None
        target = output or Path(f"{folder.name.strip('.')}.cgt")
        wall_ns = max(0, _last_change_ns(folder) - command.started_ns)
    else:
        shown, arguments = _command(program)
        target = output or _default_file(program)
        check_places([("-o", target)], program[0])
        before = _version(target)
        command = Command(tuple(shown), time.time_ns())
        folder = _new_folder(target, command)
        began = time.perf_counter_ns()
        try:
            status = run_program(arguments, folder, device or "")
        except CgtoolError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        wall_ns = time.perf_counter_ns() - began
        if _version(target) != before:
            target = _another(target)
    running = _still_running(folder)
    capture = merge(folder, command, wall_ns, status)
    report = ledger_report(capture)
    if format_ is opt.Format.JSON:
        show_report("cgtool-ledger", report, partial(render, report), format_, None)
    elif not quiet:
        # Standard output is the program's.
        screen = render(report, graphs=graphs, rows=rows, explain=explain)
        show_table(screen, None, stderr=True)
    try:
        capture_file.write(target, capture)
    except CgtoolError as error:
        fix = f"cgtool run {folder} -o FILE" if is_dir(folder) else None
        raise usage(error.failure.message, why=error.failure.why, fix=fix) from error
    sys.stderr.write(f"saved {target}\n")
    if running:
        verb = "is" if running == 1 else "are"
        sys.stderr.write(
            f"{count_text(running, 'process')} of it {verb} still running, and recorded; after "
            f"the end: cgtool run {folder}\n"
        )
    else:
        shutil.rmtree(folder, ignore_errors=True)
    raise typer.Exit(status or 0)


def _new_folder(target: Path, command: Command) -> Path:
    """Where the processes leave their parts: next to the file that is made of them."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=".cgtool-run-", dir=target.absolute().parent))
        (folder / COMMAND).write_bytes(msgspec.json.encode(command))
    except OSError as error:
        raise usage(f"cannot write {target}: {error.strerror}", fix="-o FILE") from error
    return folder


def _unfinished(folder: Path) -> Command:
    """The command whose parts are in a folder: cgtool was ended before it, or it still runs."""
    try:
        return msgspec.json.decode((folder / COMMAND).read_bytes(), type=Command)
    except (OSError, msgspec.MsgspecError):
        raise usage(
            f"{folder} is a folder, but not one of a run", fix="cgtool run train.py"
        ) from None


def _still_running(folder: Path) -> int:
    """How many recorded processes run on without the command, which may be about to end."""
    from cgtool.worker.program import is_running

    pids = {int(path.name.partition("-")[0]) for path in folder.glob(f"*{LOG}")}
    end = time.monotonic() + _END_S
    while running := sum(map(is_running, pids)):
        if time.monotonic() > end:
            break
        time.sleep(0.02)
    return running


_END_S = 0.5


def _last_change_ns(folder: Path) -> int:
    return max(path.stat().st_mtime_ns for path in folder.iterdir())


def _version(file: Path) -> tuple[int, int] | None:
    """Changes when a file is written."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _another(target: Path) -> Path:
    """A free name: another run has written ``target`` in the meantime."""
    names = (target.with_stem(f"{target.stem}-{number}") for number in itertools.count(2))
    return next(path for path in names if not path.exists())


def _command(program: list[str]) -> tuple[list[str], list[str]]:
    """A program as it is shown, and as it is run: a script, ``-m`` and a module, or ``--`` and a
    command."""
    first, *rest = program
    if first in ("-m", "--") and not rest:
        raise usage(f"nothing after {first}", fix="cgtool run train.py")
    if first == "--":
        return rest, rest
    if first != "-m" and not is_file(Path(first)):
        raise usage(
            f"{first}: no such file",
            fix=f"for a command that is not a Python script: cgtool run -- {' '.join(program)}",
        )
    return ["python", *program], [sys.executable, *program]


def _default_file(program: list[str]) -> Path:
    """``train.py`` is saved as ``train-run.cgt`` in the current folder."""
    name = Path(program[program[0] in ("-m", "--")]).name
    return Path(f"{name.removesuffix('.py')}-run.cgt")
