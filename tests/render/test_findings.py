"""Findings as text. `UPDATE_GOLD=1 pytest tests/render/test_findings.py` writes the gold file."""

from __future__ import annotations

import sys
from io import StringIO

import pytest
from rich.console import Console

from cgtool.analysis.reports import quoted
from cgtool.model.capture import Frame, Source, SourceBlock
from cgtool.model.finding import Finding
from cgtool.observe.frames import columns_of
from cgtool.render.report_table import Findings
from cgtool.render.text import underlined
from tests.gold_files import check

SOURCE = """\
def fn(x):
    y = x / x.max().item()
    name = "é漢"; z = torch.bincount(y)
    return call(
        y, z)
"""


SAVED = Source("model.py", (SourceBlock(1, tuple(SOURCE.splitlines())),))


def frame(line):
    return Frame("model.py", line, "fn")


def _text(*findings):
    console = Console(file=StringIO(), width=80, force_terminal=False)
    console.print(Findings(quoted(findings, [SAVED])))
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


def test_findings_of_every_kind():
    library = Frame("/usr/lib/site-packages/lib/layer.py", 7, "Layer.forward")
    check(
        "tables/findings.txt",
        _text(
            Finding(
                "sync-item",
                "`x.max()` is read on the host, which must not wait for a stream that is capturing",
                (frame(2), frame(4)),
                phase="capture forward",
                columns=(12, 26),
                module="layers.0",
                times=3,
                evidence=("the first line of what PyTorch says", "a second one"),
            ),
            Finding("sync-dynamic-shape-op", "wide characters", (frame(3),), columns=(24, 41)),
            Finding("linalg-error-check", "a call of several lines", (frame(4),), columns=(11, 0)),
            Finding("from-a-newer-version", "no page and no line", fix="read the release notes"),
            Finding("sync-print-or-format", "from a library", (library, frame(4)), severity="note"),
            Finding("rng-state-access", "in backward", (frame(4),), forward=(frame(2),)),
        ),
    )


@pytest.mark.parametrize("columns", [(0, 3), (70, 90), (26, 12)])
def test_columns_that_do_not_fit_the_line_underline_nothing(columns):
    assert underlined(SOURCE.splitlines()[1], columns) is None
    assert "^" not in _text(Finding("sync-item", "r", (frame(2),), columns=columns))


def test_columns_of_the_call_that_runs():
    sites = []

    def note():
        running = sys._getframe(1)
        sites.append((running.f_code, running.f_lasti))
        return 1

    total = 2 + note() * 3
    assert total == 5
    start, end = columns_of(sites)
    line = "    total = 2 + note() * 3"
    assert line[start:end] == "note()"
