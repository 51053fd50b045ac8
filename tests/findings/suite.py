"""Runs the examples of a page by the page's own command, and holds what is found against its marks.

``# <- CODE`` in a wrong example marks the line at which CODE must be found; a page without a mark
must be found somewhere. A right example must be free of findings.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cgtool.findings import Page, codes, page
from tests.forked_workers import run_cgtool, run_fresh_cgtool

_MARK = re.compile(r"# <- ([a-z0-9-]+)")
_SETTING = re.compile(r"[A-Z_]+=\S+")


@dataclass(frozen=True)
class Outcome:
    """What became of one example."""

    code: str
    example: str
    missed: tuple[tuple[str, int | None], ...]
    """Marks that nothing was found at."""
    found: tuple[tuple[str, int | None], ...]
    """All that was found: (code, line)."""
    error: str = ""
    """Why there is no answer."""

    @property
    def ok(self) -> bool:
        return not self.error and not self.missed and (self.example == "wrong" or not self.found)


def command_of(one: Page, device: str) -> str | None:
    """``check wrong.py:build``; None where the page says that it cannot be found there."""
    command = one.head.gpu if device == "gpu" else one.head.simulated
    return None if command.startswith("no:") else command


def pages_for(device: str) -> list[str]:
    """Codes that are to be found on ``gpu`` or ``simulated``."""
    return [code for code in codes() if command_of(page(code), device)]


def marks_of(source: str) -> list[tuple[str, int]]:
    return [
        (found[1], number)
        for number, line in enumerate(source.splitlines(), 1)
        for found in _MARK.finditer(line)
    ]


def run(code: str, example: str, device: str, folder: Path) -> Outcome:
    """Run one example in ``folder``; ``device`` is ``gpu`` or ``simulated``."""
    one = page(code)
    source = one.examples[example]
    (folder / f"{example}.py").write_text(source)
    words = command_of(one, device).replace("wrong.py", f"{example}.py").split()
    settings = [word for word in words if _SETTING.fullmatch(word)]
    words = [word for word in words if word not in settings]
    if device == "simulated":
        words += ["--device", "simulated"]
    # Variables that PyTorch reads when it is imported take a fresh process.
    fresh = device == "gpu" or bool(settings)
    run_command = run_fresh_cgtool if fresh else run_cgtool
    try:
        done = run_command(
            *words,
            "--format",
            "json",
            cwd=folder,
            timeout=240,
            env=os.environ | dict(word.split("=", 1) for word in settings),
        )
    except subprocess.TimeoutExpired:
        return Outcome(code, example, (), (), "no answer within 240 s")
    try:
        findings = json.loads(done.stdout)["findings"]
    except (ValueError, KeyError):
        return Outcome(code, example, (), (), f"exit {done.returncode}: {done.stderr[-400:]}")
    found = tuple(
        (each["code"], each["frames"][0][1] if each.get("frames") else None) for each in findings
    )
    missed: list[tuple[str, int | None]] = []
    if example == "wrong":
        marks = marks_of(source)
        missed += [mark for mark in marks if mark not in found]
        if not marks and code not in {name for name, _ in found}:
            missed.append((code, None))
    return Outcome(code, example, tuple(missed), found)
