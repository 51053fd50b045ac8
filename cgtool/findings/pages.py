"""The pages of the finding codes: ``docs/findings/CODE.md``, installed as package data.

A page is Markdown under a YAML head. The head says what the code is, how bad, what to do, and by
which command it is found; the examples below are what the tests run.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import msgspec
import yaml

_FOLDER = Path(__file__).resolve().parent.parent / "pages"
_HEAD = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
_EXAMPLE = re.compile(r"^## (Wrong|Right)\n+```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The head of a page."""

    title: str
    category: str
    """``capture-failure``, ``wrong-numbers``, ``memory``, ``hang``, ``no-speedup``, ``misuse``."""
    severity: str
    gpu: str
    """The command that finds it on a GPU (``check wrong.py:build``), or ``no: REASON``."""
    simulated: str
    """The same on the simulated device."""
    fix: str


class Page(msgspec.Struct, frozen=True):
    """One code, explained."""

    code: str
    head: Head
    text: str
    """Markdown without the head."""

    @property
    def examples(self) -> dict[str, str]:
        """``wrong`` and ``right`` to their Python source."""
        return {name.lower(): source for name, source in _EXAMPLE.findall(self.text)}


@cache
def codes() -> tuple[str, ...]:
    """All codes, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("[a-z]*.md")))


@cache
def page(code: str) -> Page | None:
    """The page of a code, or None when there is none.

    Raises ValueError for a page with a bad head, which the tests of the pages would have found.
    """
    path = _FOLDER / f"{code}.md"
    if not re.fullmatch(r"[a-z0-9-]+", code) or not path.is_file():
        return None
    text = path.read_text(encoding="utf-8")
    head = _HEAD.match(text)
    if head is None:
        raise ValueError(f"{path}: no head between two lines of ---")
    found = msgspec.convert(yaml.safe_load(head[1]), Head)
    return Page(code, found, text[head.end() :].lstrip("\n"))
