"""Steps that ran eagerly: calls of code that a graph has captured, outside graphs.

Once a capture is over, the code around most of its ops is known, and its calls are followed with
local events of ``sys.monitoring``: no function, module or hook of the program changes, Dynamo
compiles what it would compile without them, and other code runs as before. Python 3.11 has none.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

from cgtool.model import clock
from cgtool.model.journal import JournalWriter
from cgtool.model.records import CallOfCode, StepCaptured, StepRan
from cgtool.observe.captured_calls import (
    CapturedCalls,
    CodeCall,
    Sizes,
    identities,
    objects_of,
    of_thread,
    sizes_of,
)
from cgtool.observe.frames import (
    callers,
    chain_of,
    frame_of,
    frames_of,
    locals_of,
    user_frame,
)
from cgtool.recorder import notes
from cgtool.recorder.note_counters import NoteCounter, NoteCounters
from cgtool.recorder.notes import Values
from cgtool.recorder.replays import GraphReplays
from cgtool.torch_compat.patches import Patches

_MOST = 2000
"""Counters of a process: beyond this many, new runs are counted without their sizes, and without
what was noted for them."""
_WARM_UP = 16
"""Runs that the warm-up of a capture has at most."""
_TOOLS = 4, 3
"""Numbers of tools of ``sys.monitoring`` that are nobody's by convention."""


_monitoring: Any = getattr(sys, "monitoring", None)


class _Step:
    """Code that is captured, with some sizes or with several."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.graphs: list[GraphReplays] = []
        """Those that captured it, and those that were captured inside it: a call in which one of
        them is replayed runs in graphs, at least in part."""
        self.last: _Last | None = None

    def replays(self) -> int:
        replays = 0
        for graph in self.graphs:  # a generator takes longer
            replays += graph.cells[0]
        return replays


class _Followed(NamedTuple):
    """A call that is followed: one of the calls around most of a capture."""

    call: CodeCall
    step: _Step


class _Run:
    """A call in progress."""

    __slots__ = ("followed", "frame", "replays", "sizes")

    def __init__(self, followed: _Followed, frame: FrameType, sizes: Sizes) -> None:
        self.followed = followed
        self.frame = id(frame)
        """Not the frame itself, which would keep what its function drops."""
        self.sizes = sizes
        self.replays = followed.step.replays()


class _Last(NamedTuple):
    """The last runs of a step, while sizes are the same and no graph is replayed: if a capture
    follows, they were its warm-up."""

    call: CodeCall
    sizes: Sizes
    replays: int
    counters: deque[NoteCounter]
    noted: Values


class EagerSteps:
    """Follows the code that this process captures."""

    def __init__(
        self,
        journal: JournalWriter,
        is_capturing: Callable[[int], bool],
        note_counters: NoteCounters,
        patches: Patches,
    ) -> None:
        """``is_capturing``: whether a thread captures."""
        self._journal = journal
        self._is_capturing = is_capturing
        self._notes = note_counters
        self._tool: int | None = None
        self._followed: dict[int, tuple[CodeType, list[_Followed]]] = {}
        """By id of the code."""
        self.renew()
        patches.callback(self._stop)

    def renew(self) -> None:
        """Start over: the journal is empty, and the graphs are another process's."""
        self._stop()
        self._graphs: list[tuple[frozenset[int], GraphReplays]] = []
        """Each graph, with the ids of the code that led to its capture."""
        self._steps = 0
        self._counters: dict[tuple[Any, ...], NoteCounter] = {}
        self._sites: list[CodeType] = []
        """Code whose ids are in the keys of counters."""
        self._running: dict[int, _Run] = {}
        """By thread."""

    def _stop(self) -> None:
        if self._tool is not None:
            for code, _ in self._followed.values():
                _monitoring.set_local_events(self._tool, code, 0)
            _monitoring.free_tool_id(self._tool)
            self._tool = None
        self._followed.clear()

    def look_at(self) -> CapturedCalls | None:
        """Look at the calls of a capture that has begun on this thread; None if calls cannot be
        followed."""
        return CapturedCalls(sys._getframe(1), self._set_events) if self._has_tool() else None

    def _has_tool(self) -> bool:
        if _monitoring is not None and self._tool is None:
            self._tool = next((each for each in _TOOLS if _monitoring.get_tool(each) is None), None)
            if self._tool is not None:
                _monitoring.use_tool_id(self._tool, "cgtool")
                events = _monitoring.events
                _monitoring.register_callback(self._tool, events.PY_START, self._starts)
                _monitoring.register_callback(self._tool, events.PY_RETURN, self._returns)
        return self._tool is not None

    def _set_events(self, code: CodeType, is_captured: bool) -> None:
        """Follow the calls of code; ``is_captured``: in a capture, too."""
        events = _monitoring.events
        is_followed = is_captured or id(code) in self._followed
        wanted = events.PY_START | events.PY_RETURN if is_followed else 0
        if self._tool is not None:
            _monitoring.set_local_events(self._tool, code, wanted)

    def captured(
        self,
        graph: GraphReplays,
        outside: Iterable[CodeType],
        calls: Sequence[CodeCall],
        inside: Iterable[CodeCall],
    ) -> None:
        """A graph was captured. ``outside``: the code that led to its capture; ``calls``: those
        around most of it, outermost first; ``inside``: all that were seen in it."""
        # Code of the program's own, which is there as long as the program.
        codes = frozenset(map(id, outside))
        self._graphs.append((codes, graph))
        for code in codes & self._followed.keys():
            for followed in self._followed[code][1]:
                if graph not in followed.step.graphs:
                    followed.step.graphs.append(graph)
        noted = self._take_back_warm_up(inside)
        if not calls:
            return
        step = next((known.step for call in calls for known in self._known(call)), None)
        if step is None:
            step = _Step(self._steps)
            self._steps += 1
        step.graphs.append(graph)
        for call in calls:
            if not self._known(call):
                self._follow(_Followed(call, step))
        recorded = tuple(map(_recorded, calls))
        self._journal.append(StepCaptured(graph.number, step.number, recorded, notes.key_of(noted)))

    def _known(self, call: CodeCall) -> list[_Followed]:
        _, followed = self._followed.get(id(call.code), (None, ()))
        return [each for each in followed if each.call.objects.are(call.objects.ids)]

    def _take_back_warm_up(self, inside: Iterable[CodeCall]) -> Values:
        """The last runs of code that a capture runs with the same sizes are no steps; returns what
        was noted for them."""
        noted: Values = {}
        for call in inside:
            for known, step in self._known(call):
                last = step.last
                if (
                    last is not None
                    and call.sizes in (None, last.sizes)
                    and (last.call, last.replays) == (known, step.replays())
                ):
                    step.last = None
                    for counter in last.counters:
                        counter.take_back()
                    noted = noted or last.noted
        return noted

    def _follow(self, followed: _Followed) -> None:
        code = followed.call.code
        self._followed.setdefault(id(code), (code, []))[1].append(followed)
        self._set_events(code, False)
        for codes, graph in self._graphs:
            if id(code) in codes and graph not in followed.step.graphs:
                followed.step.graphs.append(graph)

    def _starts(self, code: CodeType, _offset: int) -> None:
        """Code that is followed is called."""
        thread = get_ident()
        calls, known = of_thread(thread), self._followed.get(id(code))
        if calls is None and (known is None or self._is_capturing(thread)):
            return
        is_done = False
        with self._journal.protected():
            frame = sys._getframe(1)
            if calls is not None:
                calls.called(code, frame)
            elif known is not None and not self._is_inside_run(thread, frame):
                self._started(thread, frame, known[1])
            is_done = True
        if not is_done:
            self._give_up(code)

    def _started(self, thread: int, frame: FrameType, known: Iterable[_Followed]) -> None:
        local = locals_of(frame)
        objects = objects_of(frame.f_code, local)
        ids = identities(objects)
        followed = next((each for each in known if each.call.objects.are(ids)), None)
        sizes = None if followed is None else sizes_of(frame.f_code, local, objects)
        if followed is not None and sizes is not None:
            self._running[thread] = _Run(followed, frame, sizes)

    def _give_up(self, code: CodeType) -> None:
        """Follow code no more after an error, so that it is reported once and not for each call."""
        self._followed.pop(id(code), None)
        self._set_events(code, False)

    def _is_inside_run(self, thread: int, frame: FrameType) -> bool:
        """Whether a call of this thread's is in progress, around this one."""
        run = self._running.get(thread)
        if run is None:
            return False
        if any(id(each) == run.frame for each in callers(frame.f_back)):
            return True
        del self._running[thread]  # it has raised
        return False

    def _returns(self, code: CodeType, _offset: int, _result: object) -> None:
        thread = get_ident()
        run = self._running.get(thread)
        if run is None or run.followed.call.code is not code:
            return
        is_done = False
        with self._journal.protected():
            frame = sys._getframe(1)
            if run.frame == id(frame):
                del self._running[thread]
                self._ran(thread, run, frame)
            is_done = True
        if not is_done:
            self._give_up(code)

    def _ran(self, thread: int, run: _Run, frame: FrameType) -> None:
        (call, step), sizes, replays = run.followed, run.sizes, run.replays
        if step.replays() != replays:
            self._counter(run, frame, None, {}, in_pieces=True).add(clock.time_ns(), 0)
            return
        # What was noted is about this run, and not about a replay.
        noted = self._notes.kept(notes.pending.pop(thread, {}))
        counter = self._counter(run, frame, sizes, noted)
        counter.add(clock.time_ns(), 0)
        if step.last is None or step.last[:3] != (call, sizes, replays):
            step.last = _Last(call, sizes, replays, deque(maxlen=_WARM_UP), noted)
        step.last.counters.append(counter)

    def _counter(
        self,
        run: _Run,
        frame: FrameType,
        sizes: Sizes | None,
        noted: Values,
        *,
        in_pieces: bool = False,
    ) -> NoteCounter:
        caller = user_frame(frame.f_back)
        site = () if caller is None else (id(caller.f_code), caller.f_lasti)
        key = (id(run.followed), site, in_pieces, sizes, *noted.items())
        if len(self._counters) >= _MOST and key not in self._counters:
            sizes, noted, key = None, {}, (*key[:3], None)
        with self._journal.lock:
            counter = self._counters.get(key)
            if counter is None:
                call, step = _recorded(run.followed.call), run.followed.step.number
                call.sizes = sizes
                chain = chain_of(caller)
                self._sites += (code for code, _ in chain[:1])
                what = step, call, frames_of(chain), noted, in_pieces
                counter = self._notes.new(lambda number: StepRan(number, *what))
                self._counters[key] = counter
        return counter


def _recorded(call: CodeCall) -> CallOfCode:
    return CallOfCode(call.name, frame_of((call.code, -1)), call.sizes)
