"""``cgtool explain``: the page of a finding's code."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from cgtool.cli import options as opt


class Example(StrEnum):
    WRONG = "wrong"
    RIGHT = "right"


def explain(
    code: Annotated[
        str | None, typer.Argument(metavar="CODE", help="As check and capture print it.")
    ] = None,
    example: Annotated[
        Example | None, typer.Option(help="Print this example alone, to run it.")
    ] = None,
    output: opt.Output = None,
) -> None:
    """Explain the CODE of a finding, with a wrong and a right example; without one, list them."""
    from difflib import get_close_matches

    from cgtool.cli.output import show_table, write_bytes
    from cgtool.findings.registry import codes, page
    from cgtool.model.failure import usage
    from cgtool.render.page import render, render_list

    if code is None:
        show_table(render_list([one for name in codes() if (one := page(name))]), output)
        return
    found = page(code)
    if found is None:
        close = get_close_matches(code, codes(), n=3, cutoff=0.4)
        raise usage(
            f"{code}: no such code",
            fix=f"did you mean {', '.join(close)}?" if close else "cgtool explain lists them all",
        )
    if example is not None:
        source = found.examples.get(example.value)
        if source is None:
            raise usage(f"{code} has no {example.value} example")
        write_bytes(source.encode(), output)
        return
    show_table(render(found), output)
