"""The options of ``cgtool gate`` that are rows of the table of metrics: one for each budget."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from cgtool.analysis.gate.budgets import NAMES


def with_budgets(command: Callable[..., None]) -> Callable[..., None]:
    """The command with one option a budget (``--max-nodes``) behind its first parameter. It is
    given what was typed as ``limits``: the name of the budget to its texts."""

    @functools.wraps(command)
    def called(**given: Any) -> None:
        limits = {name: given.pop(_parameter(name)) for name in NAMES}
        command(**given, limits=limits)

    signature = inspect.signature(command, eval_str=True)
    targets, *rest = (one for one in signature.parameters.values() if one.name != "limits")
    budgets = [
        inspect.Parameter(
            _parameter(name),
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[list[str] | None, _option(name)],
        )
        for name in NAMES
    ]
    # Typer reads the options from the signature.
    called.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[targets, *budgets, *rest]
    )
    return called


def _parameter(name: str) -> str:
    return name.replace("-", "_")


def _option(name: str) -> Any:
    bound, metric = NAMES[name]
    words = "At most" if bound == "max" else "At least"
    unit = f" {metric.unit}" if metric.unit in ("MiB", "ms", "us") else ""
    means = metric.means.replace("`", "")
    number = "[PHASE=]N" if metric.phases else "N"
    return typer.Option(f"--{name}", metavar=number, help=f"{words} N{unit}: {means}.")
