"""What a program noted for its replays (``cgtool.note``): the distribution of numbers, and how much
of what graphs compute is padding."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cgtool.model.ledger import LedgerGraph
from cgtool.model.program import PADDED


class Padded(NamedTuple):
    """Replays that needed the same, of graphs of one size."""

    needed: float
    size: float
    replays: int


@dataclass(frozen=True)
class Note:
    """One name, of all replays for which it was noted; or one text."""

    name: str
    """``batch``; ``mode lora``."""
    replays: int
    least: float | None
    """This and the next two: None for a text."""
    median: float | None
    most: float | None
    sizes: tuple[float, ...]
    """The sizes that the graphs compute: the least and the most, one number if they are equal;
    empty where nothing was noted."""
    padding: float | None
    """The share of what the graphs computed that was not needed."""


def notes_of(entries: Iterable[LedgerGraph]) -> tuple[Note, ...]:
    """What was noted for the replays of some graphs, by name."""
    texts: Counter[str] = Counter()
    values: dict[str, dict[float, int]] = defaultdict(lambda: defaultdict(int))
    entries = list(entries)
    for entry in entries:
        for noted in entry.notes:
            for name, value in zip(noted.names, noted.values, strict=False):
                values[name][value] += noted.replays
            for name, text in noted.texts:
                texts[f"{name} {text}"] += noted.replays
    padded = padding_of(entries)
    return (
        *(
            _note(name, counts, padded.get(name, ()))
            for name, counts in values.items()
            if not (name.startswith(PADDED) and name.removeprefix(PADDED) in padded)
        ),
        *(Note(text, count, None, None, None, (), None) for text, count in texts.items()),
    )


def padding_of(entries: Iterable[LedgerGraph]) -> dict[str, list[Padded]]:
    """By name: the replays for which both the need and the size were noted."""
    found: dict[str, list[Padded]] = defaultdict(list)
    for entry in entries:
        for noted in entry.notes:
            values = dict(zip(noted.names, noted.values, strict=False))
            for name, needed in values.items():
                size = values.get(PADDED + name)
                if size is not None:
                    found[name].append(Padded(needed, size, noted.replays))
    return found


def share_of_padding(padded: Iterable[Padded]) -> float | None:
    """The share of padding in all that was computed; None if nothing was."""
    padded = list(padded)
    computed = sum(each.size * each.replays for each in padded)
    needed = sum(min(each.needed, each.size) * each.replays for each in padded)
    return 1 - needed / computed if computed > 0 else None


def better_size(padded: Sequence[Padded]) -> float | None:
    """The size of one more graph that would leave the least padding; None if none would help."""

    def computed(size: float) -> float:
        return sum(each.size * each.replays for each in with_graph_of(size, padded))

    best = min(sorted({each.needed for each in padded}), key=computed, default=None)
    before = sum(each.size * each.replays for each in padded)
    return best if best is not None and computed(best) < before else None


def with_graph_of(size: float, padded: Iterable[Padded]) -> list[Padded]:
    """The same replays, if there were a graph of this size as well."""
    return [
        each._replace(size=min(size, each.size)) if each.needed <= size else each for each in padded
    ]


def _note(name: str, counts: dict[float, int], padded: Sequence[Padded]) -> Note:
    ordered, replays = sorted(counts), sum(counts.values())
    before, median = 0, ordered[-1]
    for value in ordered:
        before += counts[value]
        if 2 * before >= replays:
            median = value
            break
    sizes = {each.size for each in padded}
    return Note(
        name,
        replays,
        ordered[0],
        median,
        ordered[-1],
        tuple(sorted({min(sizes), max(sizes)})) if sizes else (),
        share_of_padding(padded),
    )
