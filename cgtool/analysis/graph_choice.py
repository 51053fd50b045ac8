"""Which graph of a capture is meant: by its name, or by what the ledger of a run knows of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property

from cgtool.analysis.graph.places import file_line
from cgtool.analysis.graph.select import in_lines
from cgtool.analysis.units import count_text
from cgtool.model.capture import Capture, Frame
from cgtool.model.ledger import UNSEEN, LedgerGraph

_LISTED = 20


@dataclass(frozen=True)
class Choice:
    """The graphs that match all that is given. Raises CgtoolError for a line that is not
    FILE:LINE."""

    capture: Capture
    name: str | None = None
    line: str | None = None
    owner: str | None = None
    key: str | None = None
    number: int | None = None
    notes: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def found(self) -> list[int]:
        """Indices of the graphs whose nodes are known."""
        entries = self._entries
        return [
            index
            for index, graph in enumerate(self.capture.graphs)
            if self.name in (None, graph.name) and self._matches(entries.get(index))
        ]

    @property
    def problem(self) -> str:
        """Why there is not one, with the candidates."""
        given = {each: getattr(self, each) for each in ("name", "line", "owner", "key", "number")}
        given.update(self.notes)
        words = [f"{name}={value!r}" for name, value in given.items() if value is not None]
        found = count_text(len(self.found), "graph")
        lines = list(self._candidates())
        if len(lines) > _LISTED:
            lines[_LISTED:] = [f"and {len(lines) - _LISTED} more"]
        head = f"{found} with {', '.join(words)}" if words else found
        return "\n  ".join((f"{head}{':' if self.found else '; there are:'}", *lines))

    def _candidates(self) -> Iterator[str]:
        for index in self.found or range(len(self.capture.graphs)):
            words = [repr(self.capture.graphs[index].name)]
            words.append(count_text(len(self.capture.graphs[index].nodes), "node"))
            if (entry := self._entries.get(index)) is not None:
                words += self._facts(entry)
            yield ", ".join(words)
        ledger = self.capture.ledger
        for entry in () if ledger is None or self.found else ledger.graphs:
            if entry.graph is None:
                why = entry.failure or "its nodes were not recorded"
                if entry.owner == UNSEEN:
                    why = "captured before the recording began"
                yield ", ".join((f"graph without nodes: {why}", *self._facts(entry)))

    @cached_property
    def _entries(self) -> dict[int, LedgerGraph]:
        ledger = self.capture.ledger
        entries = () if ledger is None else ledger.graphs
        return {entry.graph: entry for entry in entries if entry.graph is not None}

    def _matches(self, entry: LedgerGraph | None) -> bool:
        wanted = (self.line, self.owner, self.key, self.number)
        if entry is None:
            return not self.notes and all(each is None for each in wanted)
        return (
            (self.line is None or any(map(in_lines(self.line), self._frames(entry))))
            and (self.owner is None or _is_like(entry.owner, self.owner))
            and (self.key is None or _is_like(entry.key, self.key))
            and self.number in (None, entry.number)
            and all(_noted(entry, *note) for note in self.notes.items())
        )

    def _facts(self, entry: LedgerGraph) -> Iterator[str]:
        frames = list(self._frames(entry))
        yield f"captured{f' at {file_line(frames[0])}' if frames else ''} by {entry.owner}"
        if entry.key:
            yield f"key {entry.key!r}"
        noted = {
            f"{name}={value:g}"
            for each in entry.notes
            for name, value in zip(each.names, each.values, strict=True)
        }
        if noted:
            yield f"replayed with {' '.join(sorted(noted))}"

    def _frames(self, entry: LedgerGraph) -> Iterator[Frame]:
        return (self.capture.frames[frame] for frame in entry.frames)


def _is_like(text: str, pattern: str) -> bool:
    return text == pattern or fnmatchcase(text, pattern)


def _noted(entry: LedgerGraph, name: str, value: float) -> bool:
    """Before its capture, or before any of its replays."""
    return f"{name} {value}" in entry.key.split(", ") or any(
        (name, value) in zip(each.names, each.values, strict=True) for each in entry.notes
    )
