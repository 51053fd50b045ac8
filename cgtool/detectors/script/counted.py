"""What captured code counts or collects on the host, and the script reads after replays, which do
neither."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cgtool.detectors.frozen_values import FrozenValues
from cgtool.findings import code
from cgtool.model.capture import Frame
from cgtool.model.finding import WARNING
from cgtool.observe.host_reads import Change, NameIn, Watched
from cgtool.observe.host_values import CONTAINERS
from cgtool.observe.script import events
from cgtool.observe.script.changes import Target, adds_elsewhere
from cgtool.observe.script.line_reads import LineReads
from cgtool.observe.script.names import Stack, name_in, stack_of
from cgtool.observe.script.script import ObservedScript
from cgtool.observe.script.state import WatchedGraph
from cgtool.observe.tensors import tensors_in
from cgtool.observe.uses import Use

CPU_STATE_STEP_COUNTER = code("cpu-state-step-counter")
PYTHON_SIDE_EFFECTS_SKIPPED = code("python-side-effects-skipped")


@dataclass
class _Count:
    """A place that captured code counts on."""

    watched: Watched
    counts_runs: bool
    """It was raised by one, or lists texts, such as names of what has run."""
    replays: int = 0
    """Of all graphs whose code counts there."""
    moved: int = 0
    """How many of these found another value than the one before."""
    value: Any = None
    """At the last replay."""
    reported: bool = False

    def content(self) -> Any:
        value = self.watched.value()
        return None if value is None else value.content


@dataclass
class _Filled:
    """A container that captured code has put something into."""

    watched: Watched
    size: int
    """When the capture ended."""
    has_tensors: bool
    emptied: bool = False
    """It was empty when the last replay began."""
    reported: bool = False

    def size_now(self) -> int | None:
        """None if something else is there."""
        container = self.watched.look_up()
        return len(container) if isinstance(container, CONTAINERS) else None


def _target(watched: Watched) -> Target:
    places = (("name", watched.use.root), *watched.use.steps)
    return next(step for step in reversed(places) if step[0] != "each")


def _is_next(change: Change) -> bool:
    before, after = change.before.content, change.after.content
    if isinstance(after, tuple) and any(isinstance(each, str) for each in after):
        return True
    return isinstance(before, int) and isinstance(after, int) and after == before + 1


def without_frame(watched: Watched) -> Watched:
    """A local name of the function that captures, without its frame, which would keep alive what
    the script deletes."""
    if not isinstance(watched.root, NameIn):
        return watched
    look_up = name_in(watched.root.frame, watched.root.name, has_parts=bool(watched.use.steps))
    return dataclasses.replace(watched, root=lambda: look_up(stack_of(sys._getframe(1))))


@dataclass
class Counts:
    """The places that captured code counts on, and whether the script keeps them right itself."""

    script: ObservedScript
    report: Callable[..., None]
    _counts: dict[Any, _Count] = field(default_factory=dict)
    """By the key of the place."""
    _of_graph: dict[int, list[_Count]] = field(default_factory=dict)
    """By number of the graph."""
    _filled: dict[Any, _Filled] = field(default_factory=dict)
    """By the key of the place."""
    _filled_by: dict[int, list[_Filled]] = field(default_factory=dict)
    """By number of the graph."""

    def __post_init__(self) -> None:
        self._reads = LineReads(self._on_read)
        # What captured code reads counts too, where it runs by itself.
        self._filled_reads = LineReads(self._on_read_of_filled)

    def captured(self, graph: WatchedGraph, flows: FrozenValues) -> None:
        """A capture has ended. What reaches an op is reported where that is followed."""
        ran = flows.second.ran
        block = next((ran.codes[number] for number in ran.blocks), None)
        functions = [each for each in ran.codes.values() if each is not block]
        reaching = flows.reaching()
        inside = [(each.co_qualname, 0, 1 << 30) for each in functions]
        inside += [(block.co_qualname, *graph.lines)] if block else []
        counted = [
            each
            for each in flows.reads.counted()
            if each.watched.key is not None
            and each.watched.key not in reaching
            and not adds_elsewhere(_target(each.watched), each.watched.frame.file, inside)
        ]
        places = [without_frame(each.watched) for each in counted]
        new = {
            place.key: _Count(place, _is_next(change))
            for place, change in zip(places, counted, strict=True)
        }
        self._counts = {**new, **self._counts}
        self._of_graph[graph.number] = [self._counts[key] for key in new]
        filled = [
            _Filled(without_frame(each), len(items := each.look_up()), bool([*tensors_in(items)]))
            for each in flows.reads.filled()
        ]
        self._filled_by[graph.number] = filled
        self._filled |= {each.watched.key: each for each in filled}
        self._reads.add(places, functions, block and (block, graph.lines))
        filling = {(each.watched.frame.file, each.watched.frame.function) for each in filled}
        own = [each for each in functions if (each.co_filename, each.co_qualname) in filling]
        in_block = block and (block, graph.lines)
        self._filled_reads.add([each.watched for each in filled], own, in_block)

    def replay_begins(self, graph: WatchedGraph, stack: Stack) -> None:
        counts = self._of_graph.get(graph.number, ())
        for count in counts:
            value = count.content()
            count.moved += bool(count.replays) and value != count.value
            count.replays, count.value = count.replays + 1, value
        filled = self._filled_by.get(graph.number, ())
        sizes = [each.size_now() for each in filled]
        for each, size in zip(filled, sizes, strict=True):
            each.emptied = size == 0
        if any((size or 0) < each.size for each, size in zip(filled, sizes, strict=True)):
            self.script.publish(events.FillingUndone(graph))
        if counts:
            self.script.lines.start(self._reads, stack.values())
        if filled:
            self.script.lines.start(self._filled_reads, stack.values())

    def _on_read(self, watched: Watched, use: Use, frame: Frame) -> None:
        count = self._counts.get(watched.key)
        if count is None or count.reported or self.script.capture is not None or not count.replays:
            return
        if count.counts_runs and not (use.computed or use.tested):
            # A log may say how often the code of Python has run.
            return
        # The script counts the replays itself if the value moves with them, or since the last one.
        is_kept = 2 * count.moved >= max(count.replays - 1, 1) or count.content() != count.value
        if is_kept:
            return
        count.reported = True
        is_list = isinstance(count.value, tuple) and watched.key[0] != "each"
        self.report(
            PYTHON_SIDE_EFFECTS_SKIPPED if is_list else CPU_STATE_STEP_COUNTER,
            f"`{watched.use.text}` is counted in captured code and read after replays, which do "
            "not count",
            (watched.frame,),
            phase="replay",
            fix="count where the script replays the graph, or in a tensor on the device",
            evidence=(f"read at {frame.short}",),
            severity=WARNING,
        )

    def _on_read_of_filled(self, watched: Watched, _use: Use, frame: Frame) -> None:
        filled = self._filled.get(watched.key)
        if filled is None or filled.reported or self.script.capture is not None:
            return
        if filled.emptied and filled.size_now() == 0:
            filled.reported = True
            text = filled.watched.use.text
            self.report(
                PYTHON_SIDE_EFFECTS_SKIPPED,
                f"captured code fills `{text}`, and replays do not: the script has emptied it, and "
                "reads it after a replay",
                (filled.watched.frame,),
                phase="replay",
                fix=f"keep what the captured call has put into `{text}`: each replay writes those "
                "tensors anew"
                if filled.has_tensors
                else f"put it into `{text}` where the script replays the graph",
                evidence=(f"read at {frame.short}",),
                severity=WARNING,
            )
