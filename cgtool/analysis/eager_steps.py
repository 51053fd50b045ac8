"""Steps that ran eagerly: calls of code that graphs of a program have captured, outside graphs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from cgtool.analysis.graph.places import file_line
from cgtool.analysis.reports import place_of
from cgtool.analysis.units import number_text
from cgtool.model.capture import Capture, Frame
from cgtool.model.ledger import ArgumentSize, CodeCall, Ledger, LedgerGraph, StepRuns
from cgtool.model.program import PADDED

_LABELS = 3
"""How many reasons the sentence names."""


@dataclass(frozen=True)
class EagerRow:
    """Steps that ran eagerly: the same code, from one line, for one reason."""

    code: str
    line: str
    runs: int
    why: str
    """The texts that the program noted, and what is larger than captured: ``reason lora,
    batch > 64``."""
    sizes: tuple[str, ...]
    """The smallest and the largest of the argument that decides; one if they are equal."""
    served_by: str | None
    """The smallest captured size that would have served them."""
    notes: tuple[str, ...]
    """``batch 65 to 100``: the numbers that the program noted."""


def eager_rows(capture: Capture, ledger: Ledger) -> tuple[EagerRow, ...]:
    """The most frequent first."""
    groups: dict[tuple[str, str, str, str | None], list[_Runs]] = defaultdict(list)
    for each in _classified(ledger):
        line = file_line(place_of(tuple(capture.frames[at] for at in each.runs.frames)))
        groups[each.runs.call.name, line, each.why, each.served_by].append(each)
    rows = [
        EagerRow(
            code=code,
            line=line,
            runs=sum(each.runs.runs for each in group),
            why=why,
            sizes=_range(group),
            served_by=served_by,
            notes=tuple(_noted(group)),
        )
        for (code, line, why, served_by), group in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.runs))


def sentence_of_steps(capture: Capture, ledger: Ledger) -> str | None:
    """``4,003 of 4,120 steps ran in graphs; 117 ran eagerly: 112 with batch > 64, the largest that
    is captured``; None if none ran eagerly."""
    labels: Counter[str] = Counter()
    for each in _classified(ledger):
        labels[each.label] += each.runs.runs
    eager = sum(labels.values())
    if not eager:
        return None
    replays = sum(each.replays for each in _whole_steps(capture, ledger))
    replays += sum(each.runs for each in ledger.step_runs if each.in_pieces)
    known = [(label, count) for label, count in labels.most_common() if label]
    shown = ", ".join(f"{count:,} {label}" for label, count in known[:_LABELS])
    ran = f"{replays:,} of {replays + eager:,} steps ran in graphs; {eager:,} ran eagerly"
    return f"{ran}: {shown}" if shown else ran


def _whole_steps(capture: Capture, ledger: Ledger) -> Iterator[LedgerGraph]:
    """The graphs that captured code, without those of pieces, which are captured inside code that
    replays them."""
    around: dict[int, set[tuple[int, tuple[str, str]]]] = defaultdict(set)
    for runs in ledger.step_runs:
        if runs.in_pieces:
            around[runs.process].add((runs.step, _function(capture.frames[runs.call.code])))
    for graph in ledger.graphs:
        outside = {_function(capture.frames[frame]) for frame in graph.frames}
        is_piece = any(
            step != graph.step and function in outside for step, function in around[graph.process]
        )
        if graph.step is not None and not is_piece:
            yield graph


def _function(frame: Frame) -> tuple[str, str]:
    return frame.file, frame.function


@dataclass(frozen=True)
class _Captured:
    """A size with which code was captured."""

    sizes: tuple[ArgumentSize, ...]
    dimensions: Mapping[str, int]

    @property
    def elements(self) -> int:
        return sum(each.value or prod(each.shape) for each in self.sizes)


class _Runs:
    """Runs with the same sizes, and the captured sizes of the same code."""

    def __init__(self, runs: StepRuns, captured: Sequence[_Captured]) -> None:
        self.runs = runs
        self._dimensions = _dimensions(runs.call.sizes or ())
        self._captured = captured
        self.notes = dict(zip(runs.names, runs.values, strict=False))
        self.texts = tuple(f"{name} {text}" for name, text in runs.texts)

    @cached_property
    def _larger(self) -> tuple[str, int] | None:
        """The first dimension that is larger than any that is captured, and the largest."""
        for name, value in self._dimensions.items():
            captured = (each.dimensions.get(name, 0) for each in self._captured)
            largest = max(captured, default=0) or value
            if value > largest:
                return name, largest
        return None

    @cached_property
    def _too_large(self) -> str:
        """``batch > 64``: with the name of a note that has the same value, if there is one."""
        if self._larger is None:
            return ""
        name, largest = self._larger
        value = self._dimensions[name]
        noted = (each for each, number in self.notes.items() if number == value)
        return f"{next(noted, name).removeprefix(PADDED)} > {largest:,}"

    @property
    def why(self) -> str:
        return ", ".join(filter(None, (*self.texts, self._too_large)))

    @cached_property
    def served_by(self) -> str | None:
        fitting = [
            each
            for each in self._captured
            if each.dimensions.keys() == self._dimensions.keys()
            and all(each.dimensions[name] >= value for name, value in self._dimensions.items())
        ]
        best = min(fitting, key=lambda each: each.elements, default=None)
        return None if best is None or not best.sizes else _text(best.sizes[0])

    @property
    def label(self) -> str:
        """The reason, in a sentence."""
        if self.texts:
            return f"with {', '.join(self.texts)}"
        if self._too_large:
            return f"with {self._too_large}, the largest that is captured"
        if self.served_by is not None:
            return "that a captured size would have served"
        if self.runs.call.sizes is None:  # they were too many to keep
            return ""
        if not self._dimensions:
            return "whose arguments say no size (`cgtool.note` does)"
        return "with other arguments than those captured"

    @property
    def size(self) -> ArgumentSize | None:
        """Of the argument that decides: the one that is larger, or else the first."""
        sizes = self.runs.call.sizes or ()
        name = "" if self._larger is None else self._larger[0]
        deciding = (each for each in sizes if name in _dimensions((each,)))
        return next(deciding, next(iter(sizes), None))


def _classified(ledger: Ledger) -> Iterator[_Runs]:
    captured: dict[tuple[int, int, str, int], list[_Captured]] = defaultdict(list)
    for graph in ledger.graphs:
        for call in graph.calls if graph.step is not None else ():
            if graph.step is not None and call.sizes is not None:
                sizes = _Captured(call.sizes, _dimensions(call.sizes))
                captured[graph.process, graph.step, *_code(call)].append(sizes)
    for runs in ledger.step_runs:
        if runs.in_pieces:
            continue
        yield _Runs(runs, captured[runs.process, runs.step, *_code(runs.call)])


def _code(call: CodeCall) -> tuple[str, int]:
    return call.name, call.code


def _dimensions(sizes: Iterable[ArgumentSize]) -> dict[str, int]:
    """``{"x.shape[0]": 8, "x.shape[1]": 64}``"""
    values = {each.name: each.value for each in sizes if each.value is not None}
    return values | {
        f"{each.name}.shape[{at}]": value for each in sizes for at, value in enumerate(each.shape)
    }


def _text(size: ArgumentSize) -> str:
    """``x[8,64]``"""
    if size.value is not None:
        return f"{size.name} {size.value:,}"
    return f"{size.name}[{','.join(map(str, size.shape))}]"


def _range(group: Sequence[_Runs]) -> tuple[str, ...]:
    sizes = [each.size for each in group if each.size is not None]
    if not sizes:
        return ()
    ordered = sorted(sizes, key=lambda size: (size.value or prod(size.shape), size.shape))
    return tuple(dict.fromkeys((_text(ordered[0]), _text(ordered[-1]))))


def _noted(group: Sequence[_Runs]) -> Iterator[str]:
    numbers: dict[str, list[float]] = defaultdict(list)
    for each in group:
        for name, value in each.notes.items():
            numbers[name].append(value)
    for name, values in numbers.items():
        ends = dict.fromkeys(map(number_text, (min(values), max(values))))
        yield f"{name} {' to '.join(ends)}"
