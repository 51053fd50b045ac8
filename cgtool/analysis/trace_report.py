"""The report of ``cgtool annotate``: how many kernels of a trace were matched, how surely, and
which launches match no graph."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from cgtool.analysis.trace_match import Fit, How, Launch
from cgtool.analysis.units import count_text, percent_text
from cgtool.model.capture import Capture

_SURE: tuple[How, ...] = ("node id", "order", "neighbors")


@dataclass(frozen=True)
class MatchedGraphRow:
    """The launches of one graph, or of several that the trace cannot tell apart."""

    graphs: tuple[str, ...]
    nodes: int
    """Nodes that a trace records: kernels, memcpys and memsets."""
    launches: int
    records: int
    gpu_ns: int
    """Time of its kernels, memcpys and memsets, all launches together."""
    how: dict[How, int]
    """How many records were matched in each way."""


@dataclass(frozen=True)
class Unmatched:
    """Launches that match no graph, for one reason."""

    launches: int
    records: int
    why: str


@dataclass(frozen=True)
class AnnotateReport:
    """How the kernels of a trace were matched to the nodes of a capture."""

    trace: str
    capture: str
    sentence: str
    launches: int
    records: int
    """Kernels, memcpys and memsets that graphs ran."""
    outside: int
    """Records that ran outside graphs."""
    unusable: int
    """Records whose time the trace does not have."""
    how: dict[How, int]
    graphs: tuple[MatchedGraphRow, ...]
    unmatched: tuple[Unmatched, ...]
    whole_program: bool
    """The capture has all graphs of a program, not only those of an ENTRY."""

    @property
    def complete(self) -> bool:
        """Every kernel of a graph was matched."""
        return self.records == sum(self.how.get(how, 0) for how in (*_SURE, "names"))


def annotate_report(
    capture: Capture,
    launches: Sequence[Launch],
    *,
    trace: str,
    name: str,
    outside: int,
    unusable: int = 0,
) -> AnnotateReport:
    """``trace`` and ``name`` are the files of the trace and of the capture."""
    groups: dict[tuple[int, ...], list[Launch]] = defaultdict(list)
    reasons: dict[str, list[Launch]] = defaultdict(list)
    for launch in launches:
        if launch.fit.why is None:
            groups[launch.fit.graphs].append(launch)
        else:
            reasons[launch.fit.why].append(launch)
    counts = {id(launch.fit): _how(launch.fit) for launch in launches}
    how: Counter[How] = Counter()
    for launch in launches:
        how.update(counts[id(launch.fit)])
    rows = [_row(capture, graphs, group) for graphs, group in sorted(groups.items())]
    records = how.total()
    return AnnotateReport(
        trace=trace,
        capture=name,
        sentence=_sentence(how, len(launches)),
        launches=len(launches),
        records=records,
        outside=outside,
        unusable=unusable,
        how=dict(how),
        graphs=tuple(sorted(rows, key=lambda row: -row.gpu_ns)),
        unmatched=tuple(
            Unmatched(len(group), sum(len(launch.records) for launch in group), why)
            for why, group in sorted(reasons.items(), key=lambda item: -len(item[1]))
        ),
        whole_program=capture.ledger is not None,
    )


def _how(fit: Fit) -> Counter[How]:
    return Counter(match.how for match in fit.matches)


def _row(capture: Capture, graphs: tuple[int, ...], group: Sequence[Launch]) -> MatchedGraphRow:
    how: Counter[How] = Counter()
    for launch in group:
        how.update(_how(launch.fit))
    return MatchedGraphRow(
        graphs=tuple(capture.graphs[graph].name for graph in graphs),
        nodes=max(len(launch.records) for launch in group),
        launches=len(group),
        records=how.total(),
        gpu_ns=sum(
            record.end_ns - record.start_ns for launch in group for record in launch.records
        ),
        how=dict(how),
    )


def _sentence(how: Counter[How], launches: int) -> str:
    """``1,605 of 1,605 kernels of 3 graph launches matched (100%), by order``."""
    ways: dict[How, str] = {
        "node id": "by node id",
        "order": "by order",
        "neighbors": "by the launches around them",
        "names": "by name and order, with other sizes",
    }
    matched = sum(how[way] for way in ways)
    where = count_text(launches, "graph launch", "graph launches")
    text = f"{matched:,} of {how.total():,} kernels of {where} matched "
    text += f"({percent_text(matched / how.total())})"
    used = [f"{how[way]:,} {words}" for way, words in ways.items() if how[way]]
    if len(used) == 1:
        text += f", {used[0].partition(' ')[2]}"
    elif used:
        text += ": " + ", ".join(used)
    if how["ambiguous"]:
        text += f"; {how['ambiguous']:,} may be one of several nodes, and get only what these share"
    if how["none"]:
        text += f"; {how['none']:,} belong to no graph of the capture"
    return text
