"""The screen of ``cgtool capture``."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from cgtool.analysis.graph.summary import Coverage, GraphRow, ModuleRow, OpRow, Summary
from cgtool.analysis.units import bytes_text, count_text, share_text
from cgtool.render.table import GOOD, WARNING, Column, Screen, plain


def render(summary: Summary, *, explain: bool = False) -> Screen:
    """Graphs, modules, ops, attribution, caveats; with ``explain`` also what the headings mean."""
    screen = Screen(simulated=summary.simulated, explain=explain)
    screen.parts.append(_head(summary))
    screen.table("Graphs", graph_columns(summary), summary.graphs)
    warm_up = count_text(summary.warmup_iters, "warm-up iteration")
    screen.line(f"{memory_text(summary)}; {warm_up}", "dim")
    screen.table("Nodes by module", module_columns(summary), summary.modules, name="modules")
    rest = [{"op": f"{summary.ops_left_out} more ops"}] if summary.ops_left_out else []
    screen.table("Nodes by op", OPS, summary.ops, rest, name="ops")
    screen.parts += ["", _attribution(summary.coverage)]
    screen.labeled((("note", caveat.text) for caveat in summary.caveats), WARNING)
    screen.legend()
    return screen


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


def graph_columns(summary: Summary) -> Sequence[Column[GraphRow]]:
    types = dict.fromkeys(type_ for row in summary.graphs for type_ in row.types)
    return [
        Column("graph", "name"),
        Column("callable", "part", optional=True, priority=1),
        Column("nodes"),
        *(_type_column(type_) for type_ in types),
        Column("edges"),
        Column("streams", shown=any(row.streams > 1 for row in summary.graphs)),
        Column("capture", "capture_ns", explanation="host time from capture_begin to capture_end"),
        Column(
            "instantiate",
            "instantiate_ns",
            optional=True,
            explanation="host time of cudaGraphInstantiate",
        ),
        Column(
            "launch",
            "launch_ns",
            optional=True,
            explanation="host time of one replay() on an idle stream, median",
        ),
    ]


def _type_column(type_: str) -> Column[GraphRow]:
    """Nodes of one type."""
    return Column(type_, lambda row: row.types.get(type_), priority=2)


def memory_text(summary: Summary) -> str:
    """``104 MiB in 1 memory pool, 2.0 MiB in the driver for the executable graphs``."""
    text = f"{bytes_text(summary.pool_bytes)} in {count_text(summary.pools, 'memory pool')}"
    if summary.exec_bytes is not None:
        text += f", {bytes_text(summary.exec_bytes)} in the driver for the executable graphs"
    return text


def module_columns(summary: Summary) -> Sequence[Column[ModuleRow]]:
    phases = {row.phase for row in summary.graphs}
    return [
        Column(
            "module",
            lambda row: row.module if row.modules == 1 else f"{row.module} x{row.modules}",
            explanation="`layers.* x4`: 4 modules of one type and size, their nodes added up",
        ),
        Column("type", style="dim", priority=1),
        Column("forward" if "forward" in phases else "nodes", "forward"),
        Column("backward", shown="backward" in phases),
        Column("share"),
    ]


OPS: Sequence[Column[OpRow]] = (
    Column("op"),
    Column("nodes"),
    Column("top line", "line", explanation="the line with most of its nodes"),
)


def _attribution(coverage: Coverage) -> Text:
    """``Nodes with a known op 100%, line 100%, ...``: of the nodes that do work."""
    text = Text("Nodes with a known ", style="dim")
    facts = [
        ("op", coverage.op, coverage.nodes),
        ("line", coverage.line, coverage.nodes),
        ("module", coverage.module, coverage.nodes),
    ]
    if coverage.backward:
        facts.append(("forward line (backward nodes)", coverage.forward_line, coverage.backward))
    for number, (name, part, whole) in enumerate(facts):
        text.append(f"{', ' if number else ''}{name} ", style="dim")
        text.append(share_text(part, whole), style=GOOD if part == whole else WARNING)
    return text
