"""The screen of ``cgtool capture``."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from cgtool.analysis.graph.places import short_op
from cgtool.analysis.graph.summary import Coverage, Summary
from cgtool.analysis.units import bytes_text, count_text, time_text, types_text
from cgtool.render.table import GOOD, WARNING, Words, add, explained, plain, table


def render(summary: Summary) -> RenderableType:
    """Graphs, modules, ops, provenance, caveats."""
    parts: list[RenderableType] = [_head(summary), "", _graphs(summary)]
    if summary.modules:
        parts += ["", _modules(summary)]
    if summary.ops:
        parts += ["", _ops(summary)]
    parts += ["", _provenance(summary.coverage)]
    if summary.caveats:
        parts.append(explained((("note", caveat.text) for caveat in summary.caveats), WARNING))
    return Group(*parts)


def _head(summary: Summary) -> Text:
    head = plain(summary.spec, "bold")
    head.append(f"\n{summary.kind} on ")
    head.append_text(
        plain("the simulated device", WARNING) if summary.simulated else plain(summary.device)
    )
    head.append_text(plain(f", torch {summary.torch}"))
    if summary.driver:
        head.append_text(plain(f", driver CUDA {summary.driver}"))
    return head


def _graphs(summary: Summary) -> RenderableType:
    rows = summary.graphs
    streams = any(row.streams > 1 for row in rows)
    launched = any(row.launch_ns is not None for row in rows)
    made = table(
        "Graphs",
        "graph",
        ("nodes", "right"),
        "types",
        ("edges", "right"),
        *([("streams", "right")] if streams else []),
        ("capture", "right"),
        *([("instantiate", "right"), ("launch", "right")] if launched else []),
        simulated=summary.simulated,
    )
    for row in rows:
        add(
            made,
            row.name,
            f"{row.nodes:,}",
            types_text(row.types),
            f"{row.edges:,}",
            *([f"{row.streams}"] if streams else []),
            time_text(row.capture_ns),
            *([time_text(row.instantiate_ns), time_text(row.launch_ns)] if launched else []),
        )
    below: list[RenderableType] = []
    parts = dict.fromkeys((row.name.rpartition(" ")[2], row.part) for row in rows if row.part)
    if parts:
        below.append(plain(", ".join(f"{number} is {part}" for number, part in parts), "dim"))
    if launched:
        means = "times on the host; launch: one replay() on an idle stream, median"
        below.append(plain(means, "dim"))
    driver = [row.exec_bytes for row in rows if row.exec_bytes is not None]
    note = f"{count_text(summary.pools, 'memory pool')} of {bytes_text(summary.pool_bytes)}"
    if driver:
        note += f", {bytes_text(sum(driver))} of the driver's own"
    note += f"; {count_text(summary.warmup_iters, 'warm-up iteration')}"
    return Group(made, *below, plain(note, "dim"))


def _modules(summary: Summary) -> RenderableType:
    phases = {row.phase for row in summary.graphs}
    backward = "backward" in phases
    made = table(
        "Nodes by module",
        "module",
        "type",
        ("forward" if "forward" in phases else "nodes", "right"),
        *([("backward", "right")] if backward else []),
        ("share", "right"),
        simulated=summary.simulated,
    )
    for row in summary.modules:
        add(
            made,
            row.module,
            Words(row.type, "dim"),
            f"{row.forward:,}",
            *([f"{row.backward:,}"] if backward else []),
            f"{row.share:.0%}",
        )
    return made


def _ops(summary: Summary) -> RenderableType:
    made = table(
        "Nodes by op", "op", ("nodes", "right"), "most often at", simulated=summary.simulated
    )
    for row in summary.ops:
        add(made, short_op(row.op), f"{row.nodes:,}", row.line)
    if summary.ops_left_out:
        add(made, plain(f"{summary.ops_left_out} more ops", "dim"), "", "")
    return made


def _share(part: int, whole: int) -> str:
    if not whole:
        return "—"
    return "100 %" if part == whole else f"{int(1000 * part / whole) / 10:.1f} % ({part}/{whole})"


def _provenance(coverage: Coverage) -> Text:
    """Of the nodes that do work, how many have each part of their provenance."""
    text = Text("Nodes with ", style="dim")
    pieces = [
        ("op", coverage.op, coverage.nodes),
        ("line", coverage.line, coverage.nodes),
        ("module", coverage.module, coverage.nodes),
    ]
    if coverage.backward:
        pieces.append(("forward line in backward", coverage.forward_line, coverage.backward))
    for number, (name, part, whole) in enumerate(pieces):
        text.append(f"{', ' if number else ''}{name} ", style="dim")
        text.append(_share(part, whole), style=GOOD if part == whole else WARNING)
    return text
