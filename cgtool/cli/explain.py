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
    example: Annotated[Example | None, typer.Option(help="Print only this example.")] = None,
    output: opt.Output = None,
) -> None:
    """Explain a finding CODE with a wrong and a right example; without CODE, list all codes."""
    from difflib import get_close_matches

    from cgtool.cli.output import show_table, write_bytes
    from cgtool.findings.registry import codes, page
    from cgtool.model.failure import usage
    from cgtool.render.report_table import render_page, render_pages

    if code is None:
        show_table(render_pages([known for name in codes() if (known := page(name))]), output)
        return
    known = page(code)
    if known is None:
        close = get_close_matches(code, codes(), n=3, cutoff=0.4)
        raise usage(
            f"no finding code `{code}`",
            fix=f"did you mean {', '.join(close)}?"
            if close
            else "`cgtool explain` lists all codes",
        )
    if example is not None:
        source = known.examples.get(example.value)
        if source is None:
            raise usage(f"`{code}` has no {example.value} example")
        write_bytes(source.encode(), output)
        return
    show_table(render_page(known), output)
