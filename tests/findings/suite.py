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

import torch

from cgtool.findings import Page, codes, page
from tests.forked_workers import run_cgtool, run_fresh_cgtool

_MARK = re.compile(r"# <- ([a-z0-9-]+)")
_SETTING = re.compile(r"[A-Z_]+=\S+")


@dataclass(frozen=True)
class Outcome:
    """The outcome of one example."""

    code: str
    example: str
    missed: tuple[tuple[str, int | None], ...]
    """Marks that nothing was found at."""
    findings: tuple[tuple[str, int | None], ...]
    """All that was found: (code, line)."""
    unmarked: tuple[tuple[str, int | None], ...] = ()
    """Findings in a wrong script that have no mark."""
    error: str = ""
    """Why there is no answer."""

    @property
    def ok(self) -> bool:
        wrong = self.missed or self.unmarked or (self.example == "right" and self.findings)
        return not self.error and not wrong


def command_of(document: Page, device: str) -> str | None:
    """``check wrong.py:build``; None where the page says that it cannot be found there."""
    command = document.head.gpu if device == "gpu" else document.head.simulated
    return None if command.startswith("no:") else command


def pages_for(device: str) -> list[str]:
    """Codes that are to be found on ``gpu`` or ``simulated`` with the installed PyTorch."""
    found = [code for code in codes() if command_of(page(code), device)]
    header = Path(torch.__file__).parent / "include/ATen/cuda/CUDAContextLight.h"
    if device == "gpu" and "clearCublasWorkspacesForStream" not in header.read_text():
        # Resetting a graph does not free workspaces yet.
        found.remove("same-stream-cublas-workspace")
    return found


def marks_of(source: str) -> list[tuple[str, int | None]]:
    return [
        (mark[1], number)
        for number, line in enumerate(source.splitlines(), 1)
        for mark in _MARK.finditer(line)
    ]


def run(code: str, example: str, device: str, folder: Path) -> Outcome:
    """Run one example in ``folder``; ``device`` is ``gpu`` or ``simulated``."""
    document = page(code)
    source = document.examples[example]
    (folder / f"{example}.py").write_text(source)
    words = command_of(document, device).replace("wrong.py", f"{example}.py").split()
    settings = [word for word in words if _SETTING.fullmatch(word)]
    words = [word for word in words if word not in settings]
    options = ["--format", "json", *(["--device", "simulated"] if device == "simulated" else ())]
    # What follows the name of a program is the program's own.
    words[1:1] = options
    # Variables that PyTorch reads when it is imported take a fresh process.
    fresh = device == "gpu" or bool(settings)
    run_command = run_fresh_cgtool if fresh else run_cgtool
    try:
        done = run_command(
            *words,
            cwd=folder,
            timeout=240,
            env=os.environ | dict(word.split("=", 1) for word in settings),
        )
    except subprocess.TimeoutExpired:
        return Outcome(code, example, (), (), error="no answer within 240 s")
    try:
        report = json.loads(done.stdout)
        findings = report["findings"]
    except (ValueError, KeyError):
        return Outcome(code, example, (), (), error=f"exit {done.returncode}: {done.stderr[-400:]}")
    if report.get("lost") or report.get("exit_status"):
        # A program of `cgtool run` that did not end as it should.
        said = f"exit {done.returncode}: {report['lost']} {done.stderr[-400:]}"
        return Outcome(code, example, (), (), error=said)
    findings_at = tuple(
        (each["code"], each["frames"][0][1] if each.get("frames") else None) for each in findings
    )
    if example == "right":
        ended = [part for part in report.get("looked_at", ()) if "ended with" in part]
        return Outcome(code, example, (), findings_at, error="; ".join(ended))
    marks = marks_of(source)
    missed = [mark for mark in marks if mark not in findings_at]
    if not marks and code not in {name for name, _ in findings_at}:
        missed.append((code, None))
    is_script = f"{example}.py" in words
    unmarked = [
        at for at in findings_at if is_script and (at not in marks if marks else at[0] != code)
    ]
    return Outcome(code, example, tuple(missed), findings_at, tuple(unmarked))
