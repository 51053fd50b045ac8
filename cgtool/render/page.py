"""A page of the finding codes on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.markdown import Markdown

from cgtool.findings.registry import Page
from cgtool.render.findings_table import severity_style
from cgtool.render.table import add, plain, table


def render(page: Page) -> RenderableType:
    """Head, text and examples."""
    head = plain(page.code, "bold")
    head.append_text(plain(f"  {page.head.severity}", severity_style(page.head.severity)))
    head.append_text(plain(f", {page.head.category}", "dim"))
    return Group(
        head,
        plain(page.head.title),
        "",
        plain(f"fix: {page.head.fix}"),
        plain(f"found on a GPU by: {_command(page.head.gpu)}", "dim"),
        plain(f"on the simulated device by: {_command(page.head.simulated)}", "dim"),
        "",
        Markdown(page.text, code_theme="ansi_dark"),
    )


def _command(text: str) -> str:
    if text.startswith("no:"):
        return f"not found ({text.removeprefix('no:').strip()})"
    return f"cgtool {text}"


def render_list(pages: Sequence[Page]) -> RenderableType:
    """All codes, by category."""
    parts: list[RenderableType] = []
    ordered = sorted(pages, key=lambda one: (one.head.category, one.code))
    for category, members in groupby(ordered, key=lambda one: one.head.category):
        made = table(category, ("code", "left"), "what is wrong")
        for one in members:
            add(made, one.code, one.head.title)
        parts += [made, ""]
    return Group(*parts[:-1])
