"""``cgtool run``: the CUDA graphs of a program that captures them itself."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from cgtool.cli import options as opt
from cgtool.cli.follow import Progress, follow
from cgtool.cli.output import check_places, print_saved, show_report
from cgtool.model import capture_file
from cgtool.model.capture import Capture, created_now
from cgtool.model.failure import CgtoolError, usage
from cgtool.model.files import free_name, is_dir, is_file, version_of
from cgtool.model.journal import COMMAND, LOG, Command, new_folder, process_files
from cgtool.model.ledger import READY, Event, Ledger
from cgtool.model.program import Settings
from cgtool.model.sources import with_sources
from cgtool.program.spec import parse_entry

EPILOG = """PROGRAM is `train.py ARGS...`, `-m package.module ARGS...`, or after `--` any command
that ends in Python processes: `cgtool run -- torchrun --nproc-per-node 2 train.py`. To show a
saved run, give its .cgt file; if cgtool was killed, give the .cgtool-run-... folder that it left.
To compare ranks that have a file each, give the folder with the files.
The exit code is that of the program."""


def run(
    *,
    program: Annotated[
        list[str], typer.Argument(metavar="PROGRAM [ARGS]...", help="The program to run.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Save the capture in FILE; for a saved run, write the table there.",
            rich_help_panel=opt.OUTPUT,
        ),
    ] = None,
    format_: opt.FormatOption = "table",
    only: opt.OnlyTable = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="DEVICE", help="simulated; by default, a GPU if there is one."),
    ] = None,
    times: Annotated[
        bool,
        typer.Option(
            "--times", help="Time replays on the GPU, and everything that runs outside graphs."
        ),
    ] = False,
    step: Annotated[
        bool,
        typer.Option(
            "--step", help="Run each replay node by node, and name the node that fails on a GPU."
        ),
    ] = False,
    ready_after: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Mark the event `ready` at the N-th replay of a process."
        ),
    ] = None,
    ready_output: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN",
            help="Mark the event `ready` when the program prints a line that matches this regular "
            "expression.",
        ),
    ] = None,
    watchdog: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            metavar="SECONDS",
            help="Say what each process does when nothing is captured or replayed for so long.",
        ),
    ] = None,
    graphs: Annotated[bool, typer.Option("--graphs", help="Show a row for each graph.")] = False,
    ranks: Annotated[
        bool,
        typer.Option(
            "--ranks", help="Compare the ranks of a program: captures, collectives, replays."
        ),
    ] = False,
    rows: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Rows of the table, and findings; 0 shows all."),
    ] = 20,
    explain: opt.Explain = False,
    quiet: opt.Quiet = False,
) -> None:
    """Run PROGRAM unchanged, and record every CUDA graph that its processes capture."""
    from cgtool.worker.program import HOME, run_program

    if device not in (None, "simulated"):
        raise usage(f"device `{device}` is not `simulated`", fix="leave out --device for a GPU")
    options: dict[str, Any] = {}
    options |= {"format_": format_, "only": only, "quiet": quiet, "rows": rows, "explain": explain}
    show: Callable[..., None] = partial(_show, ranks=ranks, graphs=graphs, **options)
    is_saved = program[0].endswith(".cgt")
    folder = Path(program[0])
    is_folder = is_dir(folder) and not is_saved
    files = _files_of_ranks(folder) if is_folder else []
    unfinished = _unfinished(folder) if is_folder and not files else None
    if is_saved or is_folder:
        given: dict[str, object] = {"--device": device, "--times": times, "--step": step}
        given |= {"--ready-after": ready_after, "--ready-output": ready_output}
        given |= {"--watchdog": watchdog is not None}
        if option := next((name for name, is_given in given.items() if is_given), None):
            raise usage(
                f"{option} applies to a program, not to a saved run: {program[0]}",
                fix="leave the option out, or give the program",
            )
        if program[1:]:
            raise usage(
                f"nothing can follow a saved run: {shlex.join(program[1:])}",
                fix="options of cgtool come before it",
            )
    if times and step:
        raise usage(
            "--times and --step exclude each other",
            why="nodes that run one at a time take longer than in a replay",
            fix="leave one of them out",
        )
    if ready_after is not None and ready_output is not None:
        raise usage(
            "--ready-after and --ready-output exclude each other",
            why="both mark the event `ready`",
            fix="leave one of them out",
        )
    pattern = None if ready_output is None else _pattern(ready_output)
    if is_saved:
        capture = capture_file.read(Path(program[0]))
        if capture.ledger is None:
            raise usage(
                f"{program[0]} is not a saved run",
                why="an ENTRY was captured",
                fix=f"cgtool show {program[0]}",
            )
        output = opt.place(output)
        check_places([("-o", output)], program[0])
        show(capture, output=output)
        return
    if files:
        output = opt.place(output)
        check_places([("-o", output)], *files)
        _show_ranks(list(map(_capture_of, files)), program[0], output=output, **options)
        return
    progress = Progress()
    if unfinished is not None:
        command, status = unfinished, None
        target = output or Path(f"{folder.name.strip('.')}.cgt")
        wall_ns = None
    else:
        shown, arguments = _command(program)
        target = output or _default_file(program)
        check_places([("-o", target)], program[0])
        before = version_of(target)
        command = Command(tuple(shown), time.time_ns(), str(Path.cwd()))
        folder = new_folder(target, command)
        try:
            settings = Settings(
                home=str(HOME),
                folder=str(folder),
                device=device or "",
                times="yes" * times,
                step="yes" * step,
                ready_after=str(ready_after or ""),
                watchdog="yes" * bool(watchdog),
            )
            meanwhile = partial(follow, folder, command, progress, watchdog)
            status, wall_ns = run_program(arguments, settings, pattern, meanwhile)
        except CgtoolError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if version_of(target) != before:
            target = free_name(target)
    from cgtool.analysis.ledger import merge_folder

    with _kept_if_interrupted(folder):
        known, running = _processes(folder)
        capture = merge_folder(
            command,
            folder,
            wall_ns=wall_ns,
            status=status,
            created=created_now(),
            moments=progress.of,
        )
        # Its processes began later.
        capture = with_sources(capture, command.started_ns, command.folder)
        try:
            # Standard output is the program's.
            show(capture, output=None, stderr=True)
        finally:
            # One that a daemon has forked since then is not in the capture.
            running |= _pids(folder) - known
            if output is None and not running and _is_empty(capture.ledger):
                shutil.rmtree(folder, ignore_errors=True)
                file = program[0] if program[0].endswith(".py") else "FILE.py"
                sys.stderr.write(_WITHOUT_GRAPHS.format(file=file))
            else:
                _save(capture, target, folder, len(running))
            if ready_output is not None and not any(each.output for each in _events(capture)):
                sys.stderr.write(f"no line of the output matched --ready-output {ready_output}\n")
            if ready_after is not None and READY not in {each.name for each in _events(capture)}:
                sys.stderr.write(
                    f"no process replayed {ready_after} times: --ready-after marked no event\n"
                )
            if output is None and (name := _file_for_cgtool(program)):
                sys.stderr.write(
                    f"`-o {name}` came after the program, so the program got it; for cgtool: "
                    f"cgtool run -o {name} {program[0]}\n"
                )
    raise typer.Exit(status or 0)


@contextlib.contextmanager
def _kept_if_interrupted(folder: Path) -> Iterator[None]:
    """Ctrl-C while the capture is made of a folder leaves the folder: say so."""
    try:
        yield
    except KeyboardInterrupt:
        if is_dir(folder):
            sys.stderr.write(
                "interrupted; what was recorded is kept: "
                f"cgtool run {shlex.quote(str(folder))} -o FILE\n"
            )
        raise


_WITHOUT_GRAPHS = (
    "nothing was saved; whether one of its functions can be captured, and what would be in the "
    "graph: cgtool check {file}:NAME, cgtool capture {file}:NAME\n"
)


def _is_empty(ledger: Ledger | None) -> bool:
    """Whether it has nothing that a later command could show."""
    return ledger is None or not (
        ledger.graphs or ledger.skips or ledger.events or ledger.gpu_ns or ledger.incomplete
    )


def _events(capture: Capture) -> tuple[Event, ...]:
    return () if capture.ledger is None else capture.ledger.events


def _show(capture: Capture, *, ranks: bool, graphs: bool, **options: Any) -> None:
    if ranks:
        command = shlex.join(capture.ledger.command if capture.ledger else ())
        _show_ranks([capture], command, **options)
        return
    from cgtool.analysis.ledger_report import ledger_report
    from cgtool.render.ledger_table import render

    show_report("cgtool-ledger", ledger_report(capture), render, graphs=graphs, **options)


def _show_ranks(captures: Sequence[Capture], command: str, **options: Any) -> None:
    from cgtool.analysis.ranks.report import ranks_report
    from cgtool.render.ranks_table import render

    show_report("cgtool-ranks", ranks_report(captures, command), render, **options)


def _files_of_ranks(folder: Path) -> list[Path]:
    """The saved runs in a folder, and the folders in it that cgtool left when it was killed."""
    if is_file(folder / COMMAND):
        return []
    return sorted(path for path in folder.iterdir() if path.suffix == ".cgt" or _is_left(path))


def _is_left(path: Path) -> bool:
    return is_dir(path) and is_file(path / COMMAND)


def _capture_of(file: Path) -> Capture:
    """A saved run without its graphs, or what was recorded of one."""
    from cgtool.analysis.ledger import merge_folder

    if _is_left(file):
        return merge_folder(_unfinished(file), file)
    return capture_file.read(file, empty=True)


def _save(capture: Capture, target: Path, folder: Path, running: int) -> None:
    """``running``: how many processes still write into the folder."""
    replaced = is_file(target)
    try:
        capture_file.write(target, capture)
    except CgtoolError as error:
        fix = f"cgtool run {shlex.quote(str(folder))} -o FILE" if is_dir(folder) else None
        raise usage(error.failure.message, why=error.failure.why, fix=fix) from error
    print_saved(target, replaced=replaced)
    if running:
        verb, end = ("is", "it ends") if running == 1 else ("are", "they end")
        sys.stderr.write(
            f"{running} of its processes {verb} still running and being recorded; when {end}: "
            f"cgtool run {shlex.quote(str(folder))}\n"
        )
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise usage(f"--ready-output {text}: not a regular expression: {error}") from None


def _file_for_cgtool(program: list[str]) -> str | None:
    """The capture file that arguments of the program name as an output, probably for cgtool."""
    named = (file for option, file in pairwise(program) if option in ("-o", "--output"))
    return next((file for file in named if file.endswith(".cgt")), None)


def _unfinished(folder: Path) -> Command:
    """The command whose journals are in a folder: cgtool was ended before it, or it still runs."""
    try:
        return msgspec.json.decode((folder / COMMAND).read_bytes(), type=Command)
    except (OSError, msgspec.MsgspecError):
        program = "train.py"
        if is_file(folder / "__main__.py"):
            program = f"-- python {shlex.quote(str(folder))}"
        raise usage(
            f"{folder} is not a folder of `cgtool run`", fix=f"cgtool run {program}"
        ) from None


def _processes(folder: Path) -> tuple[set[int], set[int]]:
    """The recorded processes, and those of them that run on without the command, which may be
    about to end."""
    from cgtool.worker.program import is_running

    end = time.monotonic() + _END_S
    while True:
        pids = _pids(folder)
        running = set(filter(is_running, pids))
        if not running or time.monotonic() > end:
            return pids, running
        time.sleep(0.02)


def _pids(folder: Path) -> set[int]:
    return {pid for pid, _log in process_files(folder, LOG)}


_END_S = 0.5


def _command(program: list[str]) -> tuple[list[str], list[str]]:
    """A program as it is shown, and as it is run: a script, ``-m`` and a module, or ``--`` and a
    command."""
    first, *rest = program
    if first in ("-m", "--") and not rest:
        example = "-m package.module" if first == "-m" else "-- torchrun train.py"
        raise usage(f"nothing after {first}", fix=f"cgtool run {example}")
    if first == "--":
        return rest, rest
    if first != "-m" and not is_file(Path(first)):
        if first.partition(":")[0].endswith(".py"):
            parse_entry(first)  # says what is missing in its name
            raise usage(
                f"{first} is an ENTRY, not a program",
                fix=f"cgtool capture {first}; or, for the whole script: cgtool run "
                f"{first.partition(':')[0]}",
            )
        raise usage(
            f"{first}: no such file",
            fix="for a command that is not a Python script: "
            f"cgtool run -- {'python ' if first == '-' else ''}{shlex.join(program)}",
        )
    return ["python", *program], [sys.executable, *program]


def _default_file(program: list[str]) -> Path:
    """``train.py`` is saved as ``train-run.cgt`` in the current folder."""
    name = Path(program[program[0] in ("-m", "--")]).name
    return Path(f"{name.removesuffix('.py')}-run.cgt")
