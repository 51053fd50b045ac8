"""The ``cgtool`` command: subcommands are imported when they are asked for."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from cgtool import __version__
from cgtool.model.failure import CgtoolError

COMMANDS = {
    "capture": "Capture forward and backward into graphs, show and save what is in them.",
    "bench": "Time eager against replay on the GPU, with an interval on the speed-up.",
    "check": "Find every hazard of a capture in one run, before it fails or goes wrong silently.",
    "dump": "Draw or print a capture: DOT, SVG, PNG, JSON, or the driver's own text.",
    "pools": "Explain the memory pools of a capture, to the byte.",
    "explain": "Explain the code of a finding, with a wrong and a right example.",
    "doctor": "Say what this machine can do, and what would bring the rest.",
}


class LazyGroup(TyperGroup):
    """Lists its commands from a table and imports only the one that runs."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"cgtool.cli.{cmd_name}")
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(cmd_name, context_settings={"help_option_names": ["-h", "--help"]})(
            getattr(module, cmd_name)
        )
        return typer.main.get_command(single)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    # Plain help: rich's panels would cost twice the time of all the rest.
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 fine, 1 found what it looks for, 2 wrong use or bad file, 3 this machine "
    "cannot, 4 the user's code could not be loaded or captured, 5 cannot tell.",
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


def main() -> None:
    """Run the command line. Every way out is an exit code; no traceback of ours is shown."""
    if sys.stdout is None:
        sys.stderr.write("cgtool: standard output is closed: there is nowhere to write to\n")
        _leave(2)
    for number in (signal.SIGTERM, signal.SIGHUP):
        # As Ctrl-C: the worker is ended and no temporary file stays.
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
    try:
        app()
    except CgtoolError as error:
        from cgtool.cli.output import show_failure

        show_failure(error.failure)
        _leave(error.failure.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        _leave(130)
    except BrokenPipeError:
        # The reader of our output went away; what is left to flush has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _leave(0)
    except Exception as error:
        from cgtool.cli.output import show_bug

        show_bug(error)
        _leave(70)


def _leave(code: int) -> None:
    sys.exit(code)


if __name__ == "__main__":
    main()
