"""``cgtool run``: the CUDA graphs of a program that captures them itself."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from cgtool.cli import options as opt
from cgtool.model.failure import usage
from cgtool.model.files import is_file

EPILOG = """PROGRAM is `train.py ARGS...`, `-m package.module ARGS...`, or after `--` any command
that ends in Python processes: `cgtool run -- torchrun --nproc-per-node 2 train.py`. A saved .cgt
file of a run is shown again. The exit code is that of the program."""


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
    explain: opt.Explain = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no table.")] = False,
) -> None:
    """Run PROGRAM as it is, and keep a ledger of every CUDA graph that its processes make."""
    from cgtool.analysis.ledger import ledger_report, merge
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
        table = partial(render, report, explain=explain)
        show_report("cgtool-ledger", report, table, format_, output, quiet=quiet)
        return
    shown, command = _command(program)
    target = output or _default_file(program)
    check_places([("-o", target)], program[0])
    folder = Path(tempfile.mkdtemp(prefix=".cgtool-run-", dir=target.parent))
    started_ns, began = time.time_ns(), time.perf_counter_ns()
    try:
        status = run_program(command, folder, device or "")
        wall_ns = time.perf_counter_ns() - began
        capture = merge(folder, shown, started_ns, wall_ns, status)
        capture_file.write(target, capture)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report = ledger_report(capture)
    if format_ is opt.Format.JSON:
        show_report("cgtool-ledger", report, partial(render, report), format_, None)
    elif not quiet:
        # Standard output is the program's.
        show_table(render(report, explain=explain), None, stderr=True)
    sys.stderr.write(f"saved {target}\n")
    raise typer.Exit(status)


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
