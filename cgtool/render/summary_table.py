"""The screen of ``cgtool capture``."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from cgtool.analysis.places import short_op
from cgtool.analysis.summary import Coverage, Summary
from cgtool.render.table import add, plain, table
from cgtool.render.units import bytes_text, count_text, time_text


def render(summary: Summary) -> RenderableType:
    """Graphs, modules, ops, provenance, caveats."""
    parts: list[RenderableType] = [_head(summary), "", _graphs(summary)]
    if summary.modules:
        parts += ["", _modules(summary)]
    if summary.ops:
        parts += ["", _ops(summary)]
    parts += ["", _provenance(summary.coverage)]
    for caveat in summary.caveats:
        line = Text("note ", style="yellow")
        line.append_text(plain(caveat.text))
        parts.append(line)
    return Group(*parts)


def _head(summary: Summary) -> Text:
    head = plain(summary.spec, "bold")
    head.append(f"  {summary.kind}, ")
    head.append(
        "simulated device" if summary.simulated else summary.device,
        style="yellow" if summary.simulated else "",
    )
    head.append(f", torch {summary.torch}")
    if summary.driver:
        head.append(f", driver CUDA {summary.driver}")
    return head


def _graphs(summary: Summary) -> RenderableType:
    made = table(
        "Graphs",
        "graph",
        ("nodes", "right"),
        "types",
        ("edges", "right"),
        ("capture", "right"),
        ("instantiate", "right"),
        ("launch", "right"),
    )
    for row in summary.graphs:
        types = " ".join(f"{count} {name}" for name, count in row.types.items())
        if row.streams > 1:
            types += f", {row.streams} streams"
        add(
            made,
            row.name,
            f"{row.nodes:,}",
            types,
            f"{row.edges:,}",
            time_text(row.capture_ns),
            time_text(row.instantiate_ns),
            time_text(row.launch_ns),
        )
    driver = [row.exec_bytes for row in summary.graphs if row.exec_bytes is not None]
    note = f"{count_text(summary.pools, 'pool')} of {bytes_text(summary.pool_bytes)}"
    if driver:
        note += f", {bytes_text(sum(driver))} of the driver's own"
    note += f"; {count_text(summary.warmup_iters, 'warm-up iteration')}"
    return Group(made, Padding(plain(note, "dim"), (0, 0, 0, 0)))


def _modules(summary: Summary) -> RenderableType:
    made = table(
        "Nodes by module",
        "module",
        "type",
        ("forward", "right"),
        ("backward", "right"),
        ("share", "right"),
    )
    for row in summary.modules:
        add(
            made,
            row.module,
            plain(row.type, "dim"),
            f"{row.forward:,}",
            f"{row.backward:,}",
            f"{row.share:.0%}",
        )
    return made


def _ops(summary: Summary) -> RenderableType:
    made = table("Nodes by op", "op", ("nodes", "right"), "most often at")
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
    text = Text("Of the nodes ", style="dim")
    pieces = [
        ("op", coverage.op, coverage.nodes),
        ("line", coverage.line, coverage.nodes),
        ("module", coverage.module, coverage.nodes),
    ]
    if coverage.backward:
        pieces.append(("forward line in backward", coverage.forward_line, coverage.backward))
    for number, (name, part, whole) in enumerate(pieces):
        text.append(", " if number else "")
        text.append(_share(part, whole), style="green" if part == whole else "yellow")
        text.append(f" have {'an' if name == 'op' else 'a'} {name}", style="dim")
    return text
