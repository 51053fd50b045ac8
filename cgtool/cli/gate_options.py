"""The options of ``cgtool gate`` that are rows of the table of metrics: one for each budget."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from cgtool.analysis.gate.budgets import NAMES
from cgtool.cli.options import with_options


def with_budgets(command: Callable[..., None]) -> Callable[..., None]:
    """The command with one option for each budget (``--max-nodes``), received as ``limits``: the
    name of the budget to its texts."""
    options = [
        inspect.Parameter(
            _parameter(name),
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[list[str] | None, _option(name)],
        )
        for name in NAMES
    ]
    return with_options(
        command,
        "limits",
        options,
        lambda values: {name: values[_parameter(name)] for name in NAMES},
    )


def _parameter(name: str) -> str:
    return name.replace("-", "_")


def _option(name: str) -> Any:
    bound, metric = NAMES[name]
    words = "At most" if bound == "max" else "At least"
    unit = f" {metric.unit}" if metric.unit in ("MiB", "ms", "us") else ""
    means = metric.means.replace("`", "")
    number = "[PHASE=]N" if metric.phases else "N"
    return typer.Option(f"--{name}", metavar=number, help=f"{words} N{unit}: {means}.")
