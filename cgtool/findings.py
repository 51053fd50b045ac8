"""The registry of findings: one row per code, read from the head of its page.

``docs/findings/CODE.md`` (installed as package data) is Markdown under a YAML head. The head is the
row: title, category, severity, phase, fix, the commands that find it, the modules that report it.
A module that reports a code declares it, so that a name without a page fails at import:

    SYNC_ITEM = code("sync-item")

Heads are parsed on first use; declaring a code lists the folder once.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import msgspec

from cgtool.model.finding import Code

_FOLDER = Path(__file__).resolve().parent / "pages"
_HEAD = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
_EXAMPLE = re.compile(r"^## (Wrong|Right)\n+```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The head of a page: one row of the registry."""

    title: str
    category: str
    """``capture-failure``, ``wrong-numbers``, ``memory``, ``hang``, ``no-speedup``, ``misuse``."""
    severity: str
    """``error``, ``warning`` or ``note``; a finding may differ from it."""
    phase: str
    """Where it goes wrong: ``setup``, ``warm-up``, ``capture`` or ``replay``."""
    fix: str
    """The general fix, where a finding has none of its own."""
    gpu: str
    """The command that finds it on a GPU (``check wrong.py:build``), or ``no: REASON``."""
    simulated: str
    """The command that finds it on the simulated device, or ``no: REASON``."""
    detectors: tuple[str, ...]
    """The modules that declare the code, without ``cgtool.``: ``detectors.streams``. Empty for a
    failure that cgtool explains and does not detect."""


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


class Pages(msgspec.Struct, frozen=True):
    """All codes."""

    codes: tuple[Page, ...]


def code(name: str) -> Code:
    """Declare a code that this module reports.

    Raises LookupError for a name that has no page.
    """
    if name not in _names():
        raise LookupError(f"finding code `{name}` has no page: add docs/findings/{name}.md")
    return Code(name)


@cache
def _names() -> frozenset[str]:
    # Not Path.glob, which takes milliseconds: this runs in every command.
    return frozenset(path.stem for path in _FOLDER.iterdir() if path.name[0].islower())


@cache
def codes() -> tuple[str, ...]:
    """All codes, sorted."""
    return tuple(sorted(_names()))


@cache
def page(name: str) -> Page | None:
    """The page of a code, or None when there is none, as for a code of a newer version.

    Raises ValueError or msgspec.ValidationError for a page with a bad head.
    """
    import yaml

    if name not in _names():
        return None
    path = _FOLDER / f"{name}.md"
    text = path.read_text(encoding="utf-8")
    head = _HEAD.match(text)
    if head is None:
        raise ValueError(f"{path}: no head between two lines of ---")
    # libyaml where PyYAML has it: `cgtool explain` reads all pages.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    row = msgspec.convert(yaml.load(head[1], Loader=loader), Head)
    return Page(name, row, text[head.end() :].lstrip("\n"))
