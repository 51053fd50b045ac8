"""``cgtool dump``: draw or print a capture."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from cgtool.cli import options as opt
from cgtool.model.failure import usage

if TYPE_CHECKING:
    from pathlib import Path

    from cgtool.model.capture import Capture


class Color(StrEnum):
    TYPE = "type"
    MODULE = "module"
    STREAM = "stream"


def dump(
    capture: opt.CaptureOrEntry,
    dot: Annotated[bool, typer.Option("--dot", help="Readable DOT text (the default).")] = False,
    svg: Annotated[bool, typer.Option("--svg", help="A picture, laid out.")] = False,
    png: Annotated[bool, typer.Option("--png", help="The same as PNG.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Every node with names resolved.")] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="The driver's own debug_dump text, as it wrote it.")
    ] = False,
    select: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=PATTERN",
            help="Only nodes that match, repeatable: module, op, type, kernel, file, line, stream, "
            "phase, graph, annotation; as in 'module=layers.0.*' or 'op=mm|addmm'.",
        ),
    ] = None,
    collapse: Annotated[
        int | None,
        typer.Option(min=0, metavar="DEPTH", help="Fold runs of one module to this depth."),
    ] = None,
    depth: Annotated[
        int, typer.Option(min=0, help="Names of a module path that become nested frames.")
    ] = 3,
    color: Annotated[Color, typer.Option(help="What the fill colour tells.")] = Color.TYPE,
    graph: Annotated[
        str | None, typer.Option(help="One graph by name (forward, backward, step, ...).")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, help="Fold when a graph has more boxes than this.")
    ] = 1500,
    output: opt.Output = None,
    timeout: opt.Timeout = None,
    quiet: opt.Quiet = False,
) -> None:
    """Draw or print CAPTURE: DOT, SVG, PNG, JSON, or the driver's own text."""
    from cgtool.analysis.select import select as choose
    from cgtool.cli.output import open_capture, write_bytes

    formats = [
        name
        for name, on in (("dot", dot), ("svg", svg), ("png", png), ("json", json), ("raw", raw))
        if on
    ]
    if len(formats) > 1:
        raise usage(f"one format at a time, not --{' and --'.join(formats)}")
    kind = formats[0] if formats else "dot"
    if kind == "png" and output is None and sys.stdout.isatty():
        raise usage("a PNG is no text for a terminal", fix="name a file with -o picture.png")
    opened, path = open_capture(capture, quiet=quiet, timeout=timeout)
    chosen = _graphs(opened, graph)
    if kind == "raw":
        write_bytes(_raw(opened, path, chosen).encode(), output)
        return
    keep = choose(opened, tuple(select or ()))
    keep = [ids if index in chosen else [] for index, ids in enumerate(keep)]
    if kind == "json":
        from cgtool.render.json import capture_json

        write_bytes(capture_json(opened, keep), output)
        return
    from cgtool.analysis.collapse import draw
    from cgtool.render.dot import DotRenderer

    drawings = [
        draw(opened, index, keep[index], depth=collapse, limit=limit)
        for index in chosen
        if keep[index]
    ]
    for drawing in drawings:
        if drawing.folded_to and collapse is None and not quiet:
            sys.stderr.write(
                f"{opened.graphs[drawing.graph].name}: {len(keep[drawing.graph]):,} nodes folded "
                f"into {len(drawing.boxes):,} boxes ({drawing.folded_to}); --limit or --select "
                "show more\n"
            )
    text = DotRenderer(opened, color=color.value, depth=depth).render(drawings)
    if kind == "dot":
        write_bytes(text.encode(), output)
        return
    from cgtool.render.picture import render

    write_bytes(render(text, kind), output)


def _graphs(capture: Capture, name: str | None) -> list[int]:
    if name is None:
        return list(range(len(capture.graphs)))
    found = [
        index
        for index, graph in enumerate(capture.graphs)
        if name in (graph.name, graph.phase, str(index))
    ]
    if not found:
        names = ", ".join(graph.name for graph in capture.graphs)
        raise usage(f"--graph {name}: the capture has {names}")
    return found


def _raw(capture: Capture, path: Path, chosen: list[int]) -> str:
    from cgtool.model.file import read_raw

    texts = []
    for index in chosen:
        graph = capture.graphs[index]
        if graph.raw_dot is not None:
            texts.append(read_raw(path, graph.raw_dot))
    if not texts:
        why = (
            "it was made on the simulated device, where no driver wrote one"
            if capture.environment.simulated
            else "graphs past 20,000 nodes are saved without it"
        )
        raise usage(f"{path.name} holds no debug_dump text", why=why, fix="use --dot")
    return "".join(texts)
