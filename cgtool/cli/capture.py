"""``cgtool capture``: the main job."""

from __future__ import annotations

import sys
from pathlib import Path

from cgtool.cli import options as opt
from cgtool.model.options import CaptureOptions


def default_file(spec: str) -> Path:
    """``model.py:build`` is saved as ``model-build.cgt`` in the current folder."""
    target, _, name = spec.rpartition(":")
    stem = Path(target).stem if target.endswith(".py") else target.rpartition(".")[2]
    return Path(f"{stem or 'capture'}-{name or 'entry'}.cgt".replace("/", "-"))


@opt.captures
def capture(
    *,
    entry: opt.Entry,
    output: opt.Output = None,
    format_: opt.FormatOption = opt.Format.TABLE,
    explain: opt.Explain = False,
    capture_options: CaptureOptions,
    timeout: opt.Timeout = None,
    quiet: opt.Quiet = False,
) -> None:
    """Capture ENTRY into graphs, show what is in them, and save them as one .cgt file."""
    from cgtool.cli.attempts import capture_of
    from cgtool.cli.output import check_place, show_table, write_bytes
    from cgtool.model.jobs import CaptureJob

    target = output or default_file(entry)
    check_place(target, entry)
    captured = capture_of(CaptureJob(entry, capture_options), target, timeout=timeout, quiet=quiet)
    if not quiet:
        from cgtool.analysis.graph.summary import summarize
        from cgtool.render.json import encode
        from cgtool.render.summary_table import render

        summary = summarize(captured)
        if format_ is opt.Format.JSON:
            write_bytes(encode("cgtool-summary", summary), None)
        else:
            show_table(render(summary, explain=explain), None)
    sys.stderr.write(f"saved {target}\n")
