"""Which graph of a capture is meant: by its name, or by what the ledger of a run knows of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from cgtool.analysis.graph.places import file_line
from cgtool.analysis.graph.select import in_lines
from cgtool.analysis.units import count_text
from cgtool.model.capture import Capture
from cgtool.model.ledger import LedgerGraph

Fact = str | float
_LISTED = 20


def chosen(capture: Capture, line: str | None, facts: Mapping[str, Fact]) -> list[int]:
    """The graphs with these facts that the line captured, or called what did, by index. Raises
    CgtoolError for a line that is not FILE:LINE."""
    is_there = None if line is None else in_lines(line)
    found = []
    for index, entry in enumerate(_entries(capture)):
        frames = () if entry is None else entry.frames
        # What was noted before a capture is its key.
        noted = entry.key.split(", ") if entry else ()
        known = _facts(capture, index, entry)
        if (is_there is None or any(is_there(capture.frames[at]) for at in frames)) and all(
            value in known.get(name, ()) or f"{name} {value}" in noted
            for name, value in facts.items()
        ):
            found.append(index)
    return found


def listed(capture: Capture, which: Sequence[int]) -> str:
    """A line for each of these graphs."""
    entries = _entries(capture)
    lines = [_text(capture, at, entries[at]) for at in which]
    if len(lines) > _LISTED:
        lines[_LISTED:] = [f"and {len(lines) - _LISTED} more"]
    return "".join(f"\n  {line}" for line in lines)


def _entries(capture: Capture) -> list[LedgerGraph | None]:
    entries = () if capture.ledger is None else capture.ledger.graphs
    of_graph = {entry.graph: entry for entry in entries}
    return [of_graph.get(index) for index in range(len(capture.graphs))]


def _facts(capture: Capture, index: int, entry: LedgerGraph | None) -> dict[str, list[Fact]]:
    """What a graph can be chosen by, without its line."""
    facts: dict[str, list[Fact]] = defaultdict(list)
    facts["name"] = [capture.graphs[index].name]
    if entry is not None:
        facts |= {"owner": [entry.owner], "number": [entry.number]}
        facts |= {"key": [entry.key]} if entry.key else {}
        for noted in entry.notes:
            for name, value in zip(noted.names, noted.values, strict=True):
                facts[name] += [] if value in facts[name] else [value]
    return facts


def _text(capture: Capture, index: int, entry: LedgerGraph | None) -> str:
    words = []
    for name, values in _facts(capture, index, entry).items():
        shown = (f"{value:g}" if isinstance(value, float) else repr(value) for value in values)
        words.append(f"{name}={' or '.join(shown)}")
    words.append(count_text(len(capture.graphs[index].nodes), "node"))
    if entry is not None and entry.frames:
        words.append(f"captured at {file_line(capture.frames[entry.frames[0]])}")
    return ", ".join(words)
