"""Options that several commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cgtool.model.failure import usage
from cgtool.model.options import CaptureOption, CaptureOptions, capture_options, unexpected
from cgtool.program.spec import GRAMMAR

INPUT_GRAMMAR = "The form of --input SPEC:\n\n" + "\n\n".join(
    # \\b keeps the lines of a paragraph as they are.
    f"\b\n{paragraph}"
    for paragraph in GRAMMAR.rstrip().split("\n\n")
)
"""Below the options of a command that captures."""


Entry = Annotated[
    str, typer.Argument(metavar="ENTRY", help="path/to/file.py:name or package.module:name")
]
CaptureOrEntry = Annotated[
    str, typer.Argument(metavar="CAPTURE", help="a .cgt file, or an ENTRY to capture first")
]

# Options are listed under these headings in the help.
_CAPTURING = "Capture options"
OUTPUT = "Output options"


def place(output: Path | None) -> Path | None:
    """A file to write to; None, for standard output, if its name is ``-``."""
    return None if str(output) == "-" else output


Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Write the result to FILE; - is standard output.",
        callback=place,
        rich_help_panel=OUTPUT,
    ),
]
FormatOption = Annotated[
    Literal["table", "json", "csv"],
    typer.Option("--format", help="Output format.", rich_help_panel=OUTPUT),
]
OnlyTable = Annotated[
    str | None,
    typer.Option(
        "--table",
        metavar="NAME",
        help="Only this table; in CSV, by default the first.",
        rich_help_panel=OUTPUT,
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress, no summary.", rich_help_panel=OUTPUT)
]
Explain = Annotated[
    bool,
    typer.Option(
        "--explain", help="Explain the headings below the tables.", rich_help_panel=OUTPUT
    ),
]
_Timeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0.1,
        help="End the worker process after this long.",
        rich_help_panel=_CAPTURING,
    ),
]


@dataclass
class WorkerOptions:
    """How a command runs its worker processes."""

    capture_options: CaptureOptions = field(default_factory=CaptureOptions)
    timeout: float | None = None
    """Seconds."""
    quiet: bool = False
    """Without progress."""


# --- options that are derived from a table


def with_options(
    command: Callable[..., None],
    parameter: str,
    options: Sequence[inspect.Parameter],
    collect: Callable[[Sequence[Any]], Any],
) -> Callable[..., None]:
    """``command`` with ``options`` instead of its keyword-only ``parameter``, which receives what
    ``collect`` makes of their values, in the same order."""

    @functools.wraps(command)
    def called(**arguments: Any) -> None:
        values = [arguments.pop(option.name) for option in options]
        command(**arguments, **{parameter: collect(values)})

    # Typer reads the options from the signature.
    signature = inspect.signature(command, eval_str=True)
    parameters = list(signature.parameters.values())
    at = list(signature.parameters).index(parameter)
    parameters[at : at + 1] = options
    called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return called


def keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def captures(command: Callable[..., None]) -> Callable[..., None]:
    """The command with one option for each field of ``CaptureOptions``, ``--timeout`` and
    ``--quiet``, which it receives together as ``worker``.

    An option whose name the command itself uses is spelled ``--capture-NAME``.
    """
    taken = inspect.signature(command).parameters
    parameters = [
        _parameter(option, f"capture_{option.name}" if option.name in taken else option.name)
        for option in capture_options()
    ]
    parameters += [keyword("timeout", _Timeout, None), keyword("quiet", Quiet, False)]
    return with_options(
        command,
        "worker",
        parameters,
        lambda values: WorkerOptions(_read_capture_options(values[:-2]), *values[-2:]),
    )


def _parameter(option: CaptureOption, name: str) -> inspect.Parameter:
    flag = f"--{name.replace('_', '-')}"
    default = option.default
    annotation: Any
    if isinstance(default, bool):
        annotation = bool
        flag += f"/--no-{flag.removeprefix('--')}" if default else ""
    elif default == ():
        annotation, default = list[str] | None, None
    else:
        annotation = option.type | None
    metavar = option.metavar or ("N" if annotation == int | None else None)
    declared = typer.Option(flag, metavar=metavar, help=option.help, rich_help_panel=_CAPTURING)
    return keyword(name, Annotated[annotation, declared], default)


def _read_capture_options(values: Sequence[Any]) -> CaptureOptions:
    """Capture options from the values of the command line, in their order.

    Raises CgtoolError (exit 2) for a value that the option does not take.
    """
    read: dict[str, Any] = {}
    for option, given in zip(capture_options(), values, strict=True):
        value = tuple(given or ()) if option.default == () else given
        if expected := unexpected(option.name, value):
            raise usage(f"{option.flag} {value}: expected {expected}")
        read[option.name] = value
    return CaptureOptions(**read)
