"""``cgtool dump`` and ``cgtool pools``: a capture drawn or printed, and its memory explained."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from cgtool.analysis.graph.fold import fit
from cgtool.analysis.graph.select import GRAMMAR, parse
from cgtool.analysis.graph.select import select as choose
from cgtool.cli import options as opt
from cgtool.cli.output import check_places, show_report, write_bytes
from cgtool.model.capture import Capture
from cgtool.model.failure import machine, usage

_NAMES = 12
"""Names of graphs that a message lists."""
_BY_SUFFIX = {
    ".dot": "dot", ".gv": "dot", ".svg": "svg", ".png": "png", ".pdf": "pdf", ".json": "json"
}  # fmt: skip


@opt.captures
def dump(
    *,
    capture: opt.CaptureOrEntry,
    dot: Annotated[
        bool,
        typer.Option(
            "--dot", help="Readable DOT text, the default unless FILE has another suffix."
        ),
    ] = False,
    svg: Annotated[bool, typer.Option("--svg", help="SVG picture.")] = False,
    png: Annotated[bool, typer.Option("--png", help="PNG picture.")] = False,
    pdf: Annotated[bool, typer.Option("--pdf", help="PDF, by Graphviz.")] = False,
    json: Annotated[bool, typer.Option("--json", help="JSON, with all names resolved.")] = False,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw",
            help="The driver's own debug_dump text; before driver 13.2, only this has the bodies "
            "of conditional nodes.",
        ),
    ] = False,
    select: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=PATTERN", help=" ".join(GRAMMAR.split())),
    ] = None,
    expand: Annotated[
        bool,
        typer.Option(
            "--expand",
            help="Every node in a box of its own, however many. By default, what does not fit a "
            "screen is folded: equal layers once, then whole modules as one row.",
        ),
    ] = False,
    depth: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            max=32,
            help="One row for each module call to this many levels of its path (layers.0 is 2); "
            "with --expand, levels to draw as nested frames (3).",
        ),
    ] = None,
    color: Annotated[
        Literal["type", "module", "stream", "time"],
        typer.Option(help="What the fill color shows."),
    ] = "type",
    graph: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="One graph: forward, backward, step, ..., or its number."
        ),
    ] = None,
    output: opt.Output = None,
    worker: opt.WorkerOptions,
) -> None:
    """Draw or print CAPTURE: DOT, SVG, PNG, PDF, JSON, or the driver's own text.

    The suffix of `-o FILE` selects the format: .dot, .svg, .png, .pdf or .json.
    """
    from cgtool.cli.workers import open_capture

    flags = {"dot": dot, "svg": svg, "png": png, "pdf": pdf, "json": json, "raw": raw}
    formats = [name for name, on in flags.items() if on]
    if len(formats) > 1:
        raise usage(f"--{' and --'.join(formats)} cannot be used together", fix="choose one format")
    check_places([("-o", output)], capture)
    kind = _format(formats[0] if formats else None, output)
    if kind in ("png", "pdf") and output is None and sys.stdout.isatty():
        raise usage(
            f"a {kind.upper()} cannot be shown in a terminal",
            fix=f"name a file with -o graph.{kind}",
        )
    selection = parse(select or ())
    if kind == "raw" and selection:
        raise usage("--raw is the driver's own text, which --select cannot filter")
    if kind in ("raw", "json") and (expand or depth is not None):
        raise usage(f"--{'expand' if expand else 'depth'} is for pictures, not for --{kind}")
    opened, path = open_capture(capture, worker)
    # The capture lives until the end, so the garbage collector can skip it.
    gc.freeze()
    chosen = _graphs(opened, graph)
    if not chosen and kind != "json":
        raise usage(f"{path} has no graph with nodes", why=_unread(opened))
    if kind == "raw":
        write_bytes(_raw(opened, path, chosen), output)
        return
    views = [choose(opened, index, selection) for index in chosen]
    if selection:
        views = [view for view in views if view.items]
        if not views:
            raise usage(
                f"--select {' '.join(select or ())}: no node matches",
                fix="`cgtool dump CAPTURE --json` lists the values of every node",
            )
    if kind == "json":
        from cgtool.render.json import encode_graphs

        write_bytes(encode_graphs(opened, views), output)
        return
    if color == "time" and not any(
        node.duration_ns is not None for view in views for node in opened.graphs[view.graph].nodes
    ):
        raise machine(
            "--color time: this capture has no node times",
            why="they are measured only on a GPU, by `cgtool profile` or with --times",
            fix="`cgtool profile ENTRY --save FILE` on a GPU; or --color type, module or stream",
        )
    note = None
    if not expand:
        views, note = fit(opened, views, depth)
    from cgtool.render import dot as dot_format

    levels = 3 if depth is None else depth
    text = dot_format.render(opened, views, color=color, depth=levels, note=note)
    write_bytes(text.encode() if kind == "dot" else dot_format.lay_out(text, kind), output)
    if note and depth is None and not worker.quiet:
        sys.stderr.write(f"{note}; --expand draws every node, --select and --depth a part\n")


def _format(flag: str | None, output: Path | None) -> str:
    """The format that an option names, else the end of the file's name. Raises CgtoolError (exit 2)
    if the two differ, and for another end."""
    suffix = output.suffix.lower() if output is not None else ""
    named = _BY_SUFFIX.get(suffix)
    if flag is None and named is None and suffix:
        raise usage(
            f"-o {output}: there is no format {suffix}",
            fix=f"name a file that ends in {', '.join(_BY_SUFFIX)}; or choose the format by an "
            "option: --dot, --json, --raw",
        )
    if flag is not None and named is not None and flag not in (named, "raw"):
        raise usage(
            f"--{flag} -o {output}: option and file name ask for different formats",
            fix=f"leave --{flag} out, or name a file that ends in .{flag}",
        )
    return flag or named or "dot"


def _graphs(capture: Capture, name: str | None) -> list[int]:
    """Indices of the graphs of that name, phase or number, with the bodies inside them."""
    if name is None:
        return list(range(len(capture.graphs)))
    chosen = {
        index
        for index, graph in enumerate(capture.graphs)
        if name in (graph.name, graph.phase, str(index))
    }
    if not chosen:
        names = [graph.name for graph in capture.graphs]
        more = f" and {len(names) - _NAMES:,} more" if len(names) > _NAMES else ""
        shown = (", ".join(names[:_NAMES]) or "no graph with nodes") + more
        raise usage(
            f"--graph {name}: the capture has {shown}",
            why=_unread(capture),
            fix=f"a name, or a number from 0 to {len(names) - 1:,}" if more else None,
        )
    # A body is listed after its owner.
    for index, graph in enumerate(capture.graphs):
        if graph.parent is not None and graph.parent[0] in chosen:
            chosen.add(index)
    return sorted(chosen)


def _unread(capture: Capture) -> str | None:
    """Why a graph of a program may be missing."""
    ledger = capture.ledger
    return "; ".join(ledger.lost) or None if ledger is not None else None


def _raw(capture: Capture, path: Path, chosen: list[int]) -> bytes:
    from cgtool.model.capture_file import read_raw

    names = [capture.graphs[index].raw_dot for index in chosen]
    kept = [name for name in names if name is not None]
    if not kept:
        why = (
            "it was made on the simulated device, which has no driver"
            if capture.environment.simulated
            else "the driver wrote none, or the graph has more than 20,000 nodes"
        )
        raise usage(f"{path} has no debug_dump text", why=why, fix="use --dot")
    return "".join(read_raw(path, name) for name in kept).encode(errors="replace")


# --- pools


@opt.captures
def pools(
    *,
    capture: opt.CaptureOrEntry,
    pool: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this pool; repeatable. All by default."),
    ] = None,
    by: Annotated[
        Literal["graph", "stream", "module", "line"],
        typer.Option(help="Group each pool's allocations by this."),
    ] = "graph",
    depth: Annotated[
        int, typer.Option(metavar="N", min=1, help="Module levels that --by module keeps.")
    ] = 2,
    holders: Annotated[
        int, typer.Option(metavar="N", min=0, help="Live blocks to list, largest first.")
    ] = 12,
    exact: Annotated[bool, typer.Option("--exact", help="Bytes instead of KiB and MiB.")] = False,
    format_: opt.FormatOption = "table",
    only: opt.OnlyTable = None,
    output: opt.Output = None,
    explain: opt.Explain = False,
    worker: opt.WorkerOptions,
) -> None:
    """Explain the memory pools of CAPTURE: reserved, live, peak, holders, sharing."""
    from cgtool.analysis.pools import pools_report
    from cgtool.cli.workers import open_capture
    from cgtool.render.pools_table import render

    check_places([("-o", output)], capture)
    opened, _ = open_capture(capture, worker, flags={"pool": "--capture-pool"})
    if opened.ledger is not None:
        from cgtool.analysis.ledger_report import ledger_report
        from cgtool.render.ledger_table import render_pools

        if pool:
            raise usage("--pool is for captures of an ENTRY", fix=f"cgtool pools {capture}")
        program = ledger_report(opened)
        show_report(
            "cgtool-ledger", program, render_pools, format_, output, only=only, explain=explain
        )
        return
    names = list(dict.fromkeys(pool.name for pool in opened.memory.pools))
    for name in pool or ():
        if name not in names:
            raise usage(f"--pool {name}: the capture has {', '.join(names) or 'no pool'}")
    most = sys.maxsize if format_ == "csv" else holders
    report = pools_report(opened, only=pool or (), by=by, depth=depth, holders=most)
    notes = opened.general_notes
    show_report(
        "cgtool-pools", report, render, format_, output,
        only=only, notes=notes, exact=exact, explain=explain,
    )  # fmt: skip
