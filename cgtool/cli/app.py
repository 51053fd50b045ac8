"""The ``cgtool`` command: its subcommands, which are imported when they run, and its exit codes."""

from __future__ import annotations

import atexit
import gc
import importlib
import inspect
import io
import os
import signal
import sys
from difflib import get_close_matches
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any

from cgtool import __version__

try:
    import typer
    from typer.core import TyperCommand, TyperGroup
except KeyboardInterrupt:
    # Ctrl-C during imports exits as quietly as later.
    sys.exit(130)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

COMMANDS = {
    "capture": "Capture forward and backward, show the graphs, and save them.",
    "bench": "Time eager and replay on the GPU, with a confidence interval for the speedup.",
    "profile": "Show where the GPU time of a replay goes, and whether a graph helps at all.",
    "run": "Run a program unchanged, and record every CUDA graph that it captures.",
    "check": "Find every hazard of a capture in one run, before it fails or is silently wrong.",
    "verify": "Compare replay with eager, and name the line where they first differ.",
    "debug": "Run a graph one node at a time: what ops write, the first NaN, what fails.",
    "show": "Print the tables of a saved file again: capture, bench, profile, run.",
    "dump": "Draw or print a capture: DOT, SVG, PNG, PDF, JSON, or the driver's own text.",
    "pools": "Explain the memory pools of a capture, to the byte.",
    "report": "Write a capture as one HTML page that opens offline in any browser.",
    "diff": "Show what changed between two captures: nodes, kernels, sizes, memory, times.",
    "annotate": "Add op, module and line to the kernels of graphs in another profiler's trace.",
    "gate": "Compare counts, memory and times with budgets and baselines: one verdict, for CI.",
    "explain": "Explain the code of a finding, with a wrong and a right example.",
    "doctor": "List what this machine supports, and how to enable the rest.",
    "help": "Show the help of a command.",
}

_MODULES = {
    "profile": "capture", "verify": "check", "debug": "check", "explain": "check", "pools": "dump",
    "report": "diff", "help": "app",
}  # fmt: skip
"""Commands that share the module of another command."""

_CAPTURING = "Capture options"
_MOSTLY_FILES = ("dump", "pools", "report", "diff", "gate")
"""Commands that rarely capture: their help only names the capture options."""


class Command(TyperCommand):
    """A command for which everything after ``--``, or after a script, is an argument of the user's
    program."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        names = {param.name for param in self.params}
        if names & {"program", "arguments"}:
            args = self._with_program(args)
        if "--" in args and "argument" in names:
            at = args.index("--")
            args = [*args[:at], *(f"--argument={text}" for text in args[at + 1 :])]
        return super().parse_args(ctx, args)

    def _with_program(self, args: list[str]) -> list[str]:
        """Put ``--`` where the user's program begins, so that its options stay its own: before the
        program of ``run``, after the script of ``check``, before which it may be given too.

        It begins at the first word that is not an option of this command. An ENTRY or a saved file
        there is not a program, nor is the folder of an unfinished run.
        """
        from cgtool.model.files import is_dir
        from cgtool.model.jobs import is_script

        flags = {"-h", "--help"}
        for param in self.params:
            if getattr(param, "is_flag", False):
                flags |= {*param.opts, *param.secondary_opts}
        letters = "".join(flag[1:] for flag in flags if len(flag) == 2)
        at = 0
        while at < len(args) and args[at].startswith("-") and args[at] not in ("-", "-m", "--"):
            word = args[at]
            if word.startswith("--"):
                is_value_next = "=" not in word and word not in flags
            else:
                is_value_next = len(word[1:].lstrip(letters)) == 1  # -o FILE, -qo FILE, -oFILE
            at += 2 if is_value_next else 1
        words = args[at:]
        if not words or words[0].endswith(".cgt"):
            return args
        if not any(param.name == "arguments" for param in self.params):
            return args if is_dir(Path(words[0])) else [*args[:at], "--", *words]
        is_marked = words[0] == "--"
        words = words[is_marked:]
        if not words or not (is_marked or is_script(words[0])):
            return args
        rest = words[2:] if words[1:2] == ["--"] else words[1:]
        return [*args[:at], words[0], "--", *rest]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The arguments, the options of the command itself, and the others by their panel."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            if (row := param.get_help_record(ctx)) is None:
                continue
            if param.param_type_name == "argument":
                sections["Arguments"].append((param.metavar or row[0], row[1]))
            else:
                panel = getattr(param, "rich_help_panel", None) or "Options"
                sections.setdefault(panel, []).append(row)
        for title, rows in sections.items():
            if title == _CAPTURING and ctx.info_name in _MOSTLY_FILES:
                names = ", ".join(row[0].split(" / ")[-1].split()[0] for row in rows)
                text = f"For an ENTRY, as described by `cgtool capture --help`: {names}"
                with formatter.section(title):
                    for line in wrap(text, formatter.width - 2, break_on_hyphens=False):
                        formatter.write(f"  {line}\n")
            elif rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def invoke(self, ctx: Any) -> Any:
        """Run it. Where its result would be JSON on standard output, so is its error."""
        from cgtool.model.failure import CgtoolError

        try:
            return super().invoke(ctx)
        except CgtoolError as error:
            formats = ctx.params.get("format_") or ("json" if ctx.params.get("json") else "")
            # The file of `capture` is not that of its report.
            to_file = ctx.params.get("output") is not None and ctx.info_name != "capture"
            if "json" in ([formats] if isinstance(formats, str) else formats) and not to_file:
                from cgtool.cli.output import write_bytes
                from cgtool.render.json import encode_failure

                write_bytes(encode_failure(error.failure), None)
            raise


class LazyGroup(TyperGroup):
    """Lists its commands from a table and imports only the one that runs."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            if not ctx.resilient_parsing:
                close = get_close_matches(cmd_name, COMMANDS, n=2)
                hint = f" Did you mean {' or '.join(close)}?" if close else ""
                ctx.fail(f"No such command {cmd_name!r}.{hint}")
            return None
        module = importlib.import_module(f"cgtool.cli.{_MODULES.get(cmd_name, cmd_name)}")
        command = getattr(module, cmd_name)
        epilog = getattr(module, "EPILOG", None)
        has_input = "input" in inspect.signature(command).parameters
        if has_input and cmd_name not in _MOSTLY_FILES:
            from cgtool.cli.options import INPUT_GRAMMAR

            epilog = f"{epilog}\n\n{INPUT_GRAMMAR}" if epilog else INPUT_GRAMMAR
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(
            cmd_name,
            cls=Command,
            context_settings={"help_option_names": ["-h", "--help"]},
            epilog=epilog,
        )(command)
        return typer.main.get_command(single)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def help(
    context: typer.Context,
    command: Annotated[
        str | None, typer.Argument(metavar="COMMAND", help="The command; all commands if omitted.")
    ] = None,
) -> None:
    """Show the help of COMMAND, or the list of all commands."""
    group = context.parent
    assert group is not None, "it is a command of the group"
    if command is not None:
        shown = group.command.get_command(group, command)  # type: ignore[attr-defined] # a group
        group = shown.make_context(command, [], parent=group, resilient_parsing=True)
    sys.stdout.write(f"{group.get_help()}\n")


app = typer.Typer(
    cls=LazyGroup,
    # Plain help: rich's panels take twice as long as everything else.
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 success, 1 found a problem or a difference, 2 usage error or bad file, 3 "
    "not supported on this machine, 4 the user's code could not be loaded or captured, 5 cannot "
    "tell.",
)


def _show_version(value: bool) -> None:
    if value:
        sys.stdout.write(f"cgtool {__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version."
    ),
) -> None:
    """See inside PyTorch CUDA graphs: capture, explain, draw, measure.

    ENTRY is path/to/file.py:name or package.module:name.  CAPTURE is a saved .cgt file; a command
    that takes one also takes an ENTRY and captures it first.
    """


# --- exit codes


def main() -> None:
    """Run the command line and exit with its code. Tracebacks of cgtool are never shown."""
    if sys.getfilesystemencoding() == "ascii":
        # In the locale C without UTF-8 mode, names of files could not be read or written.
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    # What is imported lives to the end. To go through it while more is imported, and once more at
    # the end, would take a fifth of the time of a short command.
    gc.set_threshold(50_000)
    atexit.register(gc.freeze)
    try:
        code = run()
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def run() -> int:
    """Run a command and return its exit code; errors go to standard error, without a traceback."""
    from cgtool.model.failure import CgtoolError

    if sys.stderr is None:
        # Closed by the caller: nothing can be reported there.
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    if sys.stdout is None:
        sys.stderr.write("cgtool: standard output is closed\n")
        return 2
    replace_streams()
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Like Ctrl-C: the worker is terminated and temporary files are removed.
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
    try:
        try:
            _check_folder()
            app(prog_name="cgtool")
        finally:
            sys.stdout.flush()
    except CgtoolError as error:
        from cgtool.cli.output import show_failure

        show_failure(error.failure)
        return error.failure.exit_code
    except Exception as error:
        from cgtool.cli.output import show_bug

        show_bug(error)
        return 70
    return 0


def _check_folder() -> None:
    """Raises CgtoolError (exit 2) if the current folder does not exist."""
    from cgtool.model.failure import usage

    try:
        Path.cwd()
    except OSError as error:
        raise usage(
            f"the current folder cannot be read: {error.strerror}",
            why="it was removed, most likely by an earlier command",
            fix="cd to a folder that exists",
        ) from error


# --- standard output and standard error


class _DroppingFile(io.FileIO):
    """A descriptor that drops everything after its first error, so that the final flush succeeds.

    If the reader closes the pipe (``| head -1``), the command continues and its exit code is its
    result. Other errors (a full disk) raise CgtoolError (exit 2) with ``message``.
    """

    def __init__(self, descriptor: int, message: str | None) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._message = message
        self._ended = False

    def write(self, data: ReadableBuffer, /) -> int:
        if not self._ended:
            try:
                return super().write(data)
            except BrokenPipeError:
                self._ended = True
            except OSError as error:
                from cgtool.model.failure import usage

                self._ended = True
                if self._message is not None:
                    raise usage(f"{self._message}: {error.strerror}") from None
        return memoryview(data).nbytes


def replace_streams() -> None:
    """Wrap Python's own output streams; streams that somebody else installed stay."""
    if sys.stdout is sys.__stdout__ and isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal without "—" gets another character instead of an error.
        sys.stdout = _dropping(sys.stdout, "cannot write to standard output", "replace")
    if sys.stderr is sys.__stderr__ and isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = _dropping(sys.stderr, None, "backslashreplace")


def _dropping(stream: io.TextIOWrapper, message: str | None, errors: str) -> io.TextIOWrapper:
    buffer = io.BufferedWriter(_DroppingFile(stream.fileno(), message))
    return io.TextIOWrapper(buffer, stream.encoding, errors, line_buffering=stream.line_buffering)


if __name__ == "__main__":
    main()
