"""The subcommands: imported when they run."""

from __future__ import annotations

import importlib
import inspect
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from cgtool import __version__

COMMANDS = {
    "capture": "Capture forward and backward into graphs, show and save what is in them.",
    "bench": "Time eager against replay on the GPU, with an interval on the speed-up.",
    "profile": "Show where the GPU time of a replay goes, and whether a graph helps at all.",
    "check": "Find every hazard of a capture in one run, before it fails or is silently wrong.",
    "verify": "Prove that replay equals eager, or name the line where they first differ.",
    "dump": "Draw or print a capture: DOT, SVG, PNG, JSON, or the driver's own text.",
    "pools": "Explain the memory pools of a capture, to the byte.",
    "diff": "Show what changed between two captures: nodes, kernels, sizes, memory, times.",
    "gate": "Compare counts, memory and times with budgets and baselines: one verdict, for CI.",
    "explain": "Explain the code of a finding, with a wrong and a right example.",
    "doctor": "Show what this machine can do, and what is needed for the rest.",
}

_MODULES = {"profile": "capture", "verify": "check", "explain": "check", "pools": "dump"}
"""Commands that are not in a module of their own name."""


class LazyGroup(TyperGroup):
    """Lists its commands from a table and imports only the one that runs."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"cgtool.cli.{_MODULES.get(cmd_name, cmd_name)}")
        command = getattr(module, cmd_name)
        epilog = getattr(module, "EPILOG", None)
        if "input" in inspect.signature(command).parameters:
            from cgtool.cli.options import INPUT_GRAMMAR

            epilog = f"{epilog}\n\n{INPUT_GRAMMAR}" if epilog else INPUT_GRAMMAR
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(
            cmd_name,
            context_settings={"help_option_names": ["-h", "--help"]},
            epilog=epilog,
        )(command)
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
