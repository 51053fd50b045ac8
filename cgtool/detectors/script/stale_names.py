"""Names that keep the result of one replay, and are read after a later one, which overwrote it."""

from __future__ import annotations

import functools
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from types import CodeType, FrameType
from typing import Any

import torch

from cgtool.detectors.reporting import Detector
from cgtool.detectors.script.outputs import OUTPUT_OVERWRITTEN_BY_NEXT_REPLAY
from cgtool.detectors.script.two_results import (
    Site,
    TwoReplays,
    frame_at,
    sites_of,
    statement_at,
    statement_of,
)
from cgtool.model.capture import Frame, Frames
from cgtool.observe.frames import (
    Names,
    frames_of,
    frames_of_other_threads,
    line_of,
    locals_of,
    loop_targets,
    names_in_expression,
)
from cgtool.observe.script import events
from cgtool.observe.script.bindings import (
    Bindings,
    Place,
    home_of,
    lines_that_bind,
    lines_that_lead_to,
    lines_that_read,
    names_at,
    places_of_tensors,
    read_at,
    tensors_at,
)
from cgtool.observe.script.branches import is_of_the_best, is_taken_now_and_then
from cgtool.observe.script.changes import Target, changed_at, put_at, rebound_in
from cgtool.observe.script.names import Stack, stack_of, suspended_in, waiting_beside
from cgtool.observe.script.script import called_by_pytorch
from cgtool.observe.script.snapshots import Snapshot, Snapshots, overlap
from cgtool.observe.script.state import WatchedGraph
from cgtool.observe.source import (
    aliased_at,
    in_one_loop,
    returns_of,
    runs_after,
    statement_start,
)
from cgtool.observe.tensors import key_of, tensors_in

_REPLAYS = 1024
"""Replays of one graph that are looked at."""


@dataclass
class _Held:
    """A place that held a result of a graph when it was replayed again."""

    graph: WatchedGraph
    place: Place
    """The place that held it then; another one may have got it since: ``before = best``."""
    there: int
    """Identity of what is at the place: the tensor, or a tuple with it."""
    before: Snapshot
    """What the result was before that replay."""
    line: Frame | None
    """The line that has bound it, if that was seen."""
    replayed_at: list[Site]
    """The calls that led to the replay before it was bound, innermost first."""
    reported: bool = False
    waits: bool = False
    """It is a variable, or in an object, of a coroutine that waited in another task, or of another
    thread."""
    doubtful: bool = False
    """The place may have been bound again to the same."""


def _one_at_a_time(
    handler: Callable[[StaleNames, Any], None],
) -> Callable[[StaleNames, Any], None]:
    """Threads of a script run ops at the same time."""

    @functools.wraps(handler)
    def locked(self: StaleNames, event: Any) -> None:
        with self._bindings.lock:
            handler(self, event)

    return locked


class StaleNames(Detector):
    """Two results of one graph under two names: ``a = run(x); b = run(y); print(a, b)``.

    A name that leads to a result is not yet a mistake: a program may bind the graph's output once,
    and read it after each replay. It is one where the program shows that it takes the name for an
    older result: a second name was bound after the last replay.
    """

    phase = "replay"

    def start(self) -> None:
        self._own: defaultdict[WatchedGraph, set[tuple[Any, ...]]] = defaultdict(set)
        """Places (`Place.in_every_call`) from which the program takes the results: those that had
        them before the first replay, or that were read as such."""
        self._held: dict[Place, _Held] = {}
        self._sites: defaultdict[WatchedGraph, deque[list[Site]]]
        self._sites = defaultdict(lambda: deque(maxlen=2))
        """By graph: the calls that led to its last replays."""
        self._used: dict[WatchedGraph, tuple[int, int, Frame]] = {}
        """By graph: the replay whose result was used last where it was made, without a name; the
        frame by identity, and the statement."""
        self._reported: set[tuple[WatchedGraph, Frame]] = set()
        """Statements that use two results."""
        self._found_at: set[Frames] = set()
        """Where this detector has reported something."""
        self._bindings = Bindings(self._on_bound, self._on_handed_over, self._on_return)
        self._threads: set[int] = set()
        """Those that have replayed graphs, whose lines are followed."""

    @_one_at_a_time
    def on_replay_begins(self, event: events.ReplayBegins) -> None:
        graph = event.graph
        if graph.callable is not None:
            return
        self._threads.add(threading.get_ident())
        if graph.replays >= _REPLAYS:
            self._leave(graph)
            return
        stack = stack_of(self.script.frame())
        waiting = self._beside(stack)
        holding = self._holding(graph, stack | waiting)
        own = self._own[graph]
        if not self._sites[graph]:
            own.update(place.in_every_call for place in holding)
        for place in [each for each, held in self._held.items() if held.graph is graph]:
            if place in holding:
                # Also where it may have been bound again: which result is kept depends on them.
                self._look_at_best(place, self._held[place], stack)
            if place not in holding or not self._is_still_there(place, holding[place][0]):
                self._held.pop(place, None)
        snapshots = Snapshots()
        for place, (there, value) in holding.items():
            if place in self._held or place.in_every_call in own:
                continue
            if _is_bound_next(place, stack):
                continue
            before = snapshots.of(value)
            if before is not None:
                line, sites = self._bindings.bound_at(place), self._sites[graph][-1]
                waits = place.root[2] in waiting
                self._held[place] = _Held(graph, place, id(there), before, line, sites, waits=waits)
        self._sites[graph].append(sites_of(stack))
        # Another thread may replay later, which cannot begin to trace this one.
        if self._held or threading.current_thread() is not threading.main_thread():
            self._bindings.watch(self._held, stack | waiting)
            if not self.script.lines.start(self._bindings, stack.values()):
                self._held.clear()

    @_one_at_a_time
    def on_graph_dropped(self, event: events.GraphDropped) -> None:
        self._own.pop(event.graph, None)
        self._sites.pop(event.graph, None)
        self._leave(event.graph)

    def _leave(self, graph: WatchedGraph) -> None:
        """Follow no place with a result of this graph."""
        for place in [each for each, held in self._held.items() if held.graph is graph]:
            del self._held[place]
        if not self._held:
            self.script.lines.leave(self._bindings)

    @_one_at_a_time
    def on_eager_op(self, event: events.EagerOp) -> None:
        read = event.op.read
        memories = [(each.data_ptr(), each.shape) for each in read]
        # PyTorch prints what it has compared with itself. A loss is a function in Python.
        is_compared = len(set(memories)) < len(memories) and not called_by_pytorch(
            but_for=torch.nn.functional.__file__
        )
        self._look_at(read, is_compared=is_compared)
        self._look_at_two(read, is_compared=is_compared)

    @_one_at_a_time
    def on_host_read(self, event: events.HostRead) -> None:
        self._look_at([event.tensor])
        self._look_at_two([event.tensor])

    @_one_at_a_time
    def on_host_waited(self, event: events.HostWaited) -> None:
        if event.tensor is not None:
            self._look_at([event.tensor])
            self._look_at_two([event.tensor])

    @_one_at_a_time
    def on_script_ended(self, _event: events.ScriptEnded) -> None:
        self._held.clear()

    def _holding(self, graph: WatchedGraph, stack: Stack) -> dict[Place, tuple[Any, torch.Tensor]]:
        """The places that lead to a result of a graph, what is there, and the first such result."""
        return {
            place: (there, results[0])
            for place, there in places_of_tensors(stack)
            if (results := [each for each in tensors_at(there) if self._is_result(graph, each)])
        }

    def _is_still_there(self, place: Place, there: Any) -> bool:
        """Whether what is at a place is what it held. An output is the same object after each
        replay, a tuple that the program makes is not."""
        held = self._held[place]
        is_same = isinstance(there, tuple) and id(there) == held.there
        is_still_there = is_same or not held.doubtful
        held.doubtful = False
        return is_still_there

    def _own_names(self, graph: WatchedGraph) -> set[str]:
        """The variables, and attributes as ``.name``, from which the program takes the results."""
        return {
            f".{key}" if kind == "attribute" else key
            for kind, key, _ in self._own[graph]
            if kind != "item"
        }

    def _is_result(self, graph: WatchedGraph, tensor: torch.Tensor) -> bool:
        buffer = self.script.buffers.find(tensor)
        if buffer is None or buffer.allocated_in is not None:
            return buffer is not None and buffer.allocated_in is graph
        use = graph.external.get(buffer.key)
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        return use is not None and use.written and use.first_is_write and not is_parameter

    def _on_bound(self, place: Place, may_be_the_same: bool) -> None:
        if may_be_the_same and place in self._held:
            self._held[place].doubtful = True
        else:
            self._held.pop(place, None)

    def _on_handed_over(self, place: Place, held: _Held, there: Any) -> None:
        """``before, best = best, y``: another name has got the older result."""
        is_there = held.before.key in map(key_of, tensors_at(there))
        if is_there and place.in_every_call not in self._own[held.graph]:
            self._held[place] = replace(held, doubtful=False)

    def _on_return(self, frame: FrameType, returned: Any) -> None:
        """What a function returns is read by its caller."""
        if self._held and returned is not None and not self.script.closed:
            self._look_in([frame], {key_of(each) for each in tensors_in(returned)})

    def _look_at(self, tensors: list[torch.Tensor], *, is_compared: bool = False) -> None:
        """``is_compared``: an op takes one of them twice."""
        if threading.get_ident() not in self._threads:
            return
        if not self.script.lines.is_tracing:
            self._held.clear()  # What was bound since is not known.
        keys = {key_of(each) for each in tensors} if self._held else set()
        if any(held.before.key in keys for held in self._held.values()):
            stack = stack_of(self.script.frame())
            self._look_in(stack.values(), keys, is_compared=is_compared)
            self._note_use(stack)

    def _look_in(
        self, frames: Iterable[FrameType], keys: set[int | None], *, is_compared: bool = False
    ) -> None:
        """The expressions that run in these frames read these storages."""
        if threading.get_ident() not in self._threads:
            return
        for frame in frames:
            names = names_in_expression(frame.f_code, frame.f_lasti)
            for place, held in list(self._held.items()):
                if held.before.key not in keys:
                    continue
                if _is_read(place, frame, names) or self._is_read_in_part(place, frame, names):
                    self._read(place, held, frame, is_compared=is_compared)

    def _is_read_in_part(self, place: Place, frame: FrameType, names: Names) -> bool:
        """Whether the expression reads a variable that got a part of what is at a place after the
        last replay: ``step, loss = pending``."""
        held = self._held[place]
        values = locals_of(frame) if names.local else {}
        variables = [(Place.local(frame, name), values.get(name)) for name in names.local]
        variables += [
            (Place.shared(frame, name), frame.f_globals.get(name)) for name in names.shared
        ]
        return any(
            self._bindings.takes_from(place, variable, frame)
            and variable not in self._held
            and variable.in_every_call not in self._own[held.graph]
            and held.before.key in map(key_of, tensors_at(value))
            for variable, value in variables
        )

    def _note_use(self, stack: Stack) -> None:
        """A statement uses the result of its own replay, which has no name: ``run(x) * 0.9``."""
        for graph in {held.graph for held in self._held.values()}:
            own = self._own_names(graph)
            for number, code, offset in self._sites[graph][-1] if self._sites[graph] else ():
                frame = stack.get(number)
                if frame is None or frame.f_code is not code or frame.f_lasti == offset:
                    continue
                at = statement_at(code, frame.f_lasti)
                names = names_in_expression(code, frame.f_lasti)
                read = names.local | names.shared | {f".{part}" for part in names.parts}
                if at == statement_at(code, offset) and own.isdisjoint(read):
                    self._used[graph] = graph.replays, number, at

    def _look_at_two(self, tensors: list[torch.Tensor], *, is_compared: bool = False) -> None:
        for tensor in tensors:
            graph = self.script.buffers.allocator_of(tensor)
            if graph is None or len(self._sites.get(graph, ())) < 2:
                continue
            stack, (before, last) = stack_of(self.script.frame()), self._sites[graph]
            two = TwoReplays(before, last, stack, tensor, is_compared)
            at = two.statement(partial(self._are_bound, graph, tensor, stack))
            if at is None:
                continue
            self._explain_others(graph)
            if (graph, at) not in self._reported:
                self._reported.add((graph, at))
                returned = self._returned_at(graph, last, (at,))
                self._found_at.add(returned or (at,))
                self.report(
                    OUTPUT_OVERWRITTEN_BY_NEXT_REPLAY,
                    f"both results of {graph.name}, which is replayed twice, are one buffer, "
                    "which holds the result of the last replay",
                    returned or (at,),
                    evidence=(f"both are used at {at.short}",) if returned else (),
                    graphs=(graph,),
                )
            return

    def _are_bound(
        self, graph: WatchedGraph, tensor: torch.Tensor, stack: Stack, code: CodeType, line: int
    ) -> bool:
        """Whether a statement has bound this result of a graph at two places."""
        bound = [
            place
            for place, (_, value) in self._holding(graph, stack).items()
            if place.in_every_call not in self._own[graph]
            if overlap(value, tensor)
            if line
            in {statement_start(code.co_filename, each) for each in lines_that_lead_to(place, code)}
        ]
        return len(bound) > 1

    def _read(self, place: Place, held: _Held, frame: FrameType, *, is_compared: bool) -> None:
        stack = stack_of(frame)
        if held.doubtful:
            there, _ = self._holding(held.graph, stack).get(place, (None, None))
            if there is None or not self._is_still_there(place, there):
                del self._held[place]
                return
        if held.reported:
            self._explain_others(held.graph)
        if held.reported or not held.before.is_changed():
            return
        line = self._line(held, frame)
        if (
            is_compared
            or self._has_successor(place, held, stack)
            or self._is_second_name(place, held, line, stack)
            or self._is_of_the_iteration_before(place, held, line, stack)
            or self._is_of_another_call(place, held, line)
            or self._is_kept_now_and_then(line, held.graph)
        ):
            self._report(
                place, held, line, f"read at {frame_at(frame.f_code, frame.f_lasti).short}"
            )
        else:
            # The program takes it for the result of the last replay.
            del self._held[place]
            self._own[held.graph].add(place.in_every_call)

    def _look_at_best(self, place: Place, held: _Held, stack: Stack) -> None:
        """A place that keeps the best of all results was held over a replay: whether it is read
        after it depends on which result is the best."""
        at = self._line(held, next(iter(stack.values())))
        is_best = any(is_of_the_best(each.file, each.line, str(place.key)) for each in at[:1])
        if is_best and held.before.is_changed():
            self._report(place, held, at)

    def _report(self, place: Place, held: _Held, line: Frames, *evidence: str) -> None:
        if held.reported:
            return
        held.reported = True
        returned = self._returned_at(held.graph, held.replayed_at, line)
        self._explain_others(held.graph)
        self._found_at.add(returned or line)
        self.report(
            OUTPUT_OVERWRITTEN_BY_NEXT_REPLAY,
            f"`{place.text}` is an output of {held.graph.name}, which was replayed again before "
            f"`{place.text}` is read: it holds the result of the last replay",
            returned or line,
            evidence=((f"kept at {line[0].short}",) if returned and line else ()) + evidence,
            graphs=(held.graph,),
        )

    def _explain_others(self, graph: WatchedGraph) -> None:
        """The same was found as an op that takes one tensor twice, or several in a list."""
        last = () if graph.last_replay is None else graph.last_replay.frames
        for place in {last, self.script.place()} - self._found_at:
            self.findings.drop(OUTPUT_OVERWRITTEN_BY_NEXT_REPLAY, place)

    def _returned_at(self, graph: WatchedGraph, sites: list[Site], at: Frames) -> Frames:
        """Where the line ``at`` has called a function that replays: the line that returns the
        output itself, of the innermost such function; () if there is none."""
        own = {key for _, key, _ in self._own[graph]}
        returned: Frames = ()
        for _, code, offset in sites:
            if at and statement_at(code, offset) == statement_of(at[0]):
                return returned
            lines = [line for line in returns_of(code) if own & names_at(code, line)]
            if lines and not returned:
                returned = (Frame(code.co_filename, lines[-1], code.co_qualname),)
        return ()

    def _line(self, held: _Held, frame: FrameType) -> Frames:
        """The line that has bound it, else the one that reads it."""
        if held.line is not None:
            return (held.line,)
        place, stack = held.place, stack_of(frame).values()
        codes = _codes_that_share(place, stack)
        for _, code, offset in held.replayed_at:
            at = statement_at(code, offset)
            # Another function may have a local variable with that name.
            if code not in codes and place.root[0] == "local":
                continue
            if at.line in (statement_start(at.file, each) for each in lines_that_bind(place, code)):
                return (at,)
        # Not `best = None`; not `best = 0.9 * best + 0.1 * y` if another line has begun it.
        lines = [
            (code, line)
            for code in codes
            for line in lines_that_bind(place, code)
            if names_at(code, line)
        ]
        lines = [each for each in lines if place.key not in names_at(*each)] or lines
        # Of several, those that read where the result is.
        others = self._holding(held.graph, stack_of(frame)) if len(lines) > 1 else {}
        names = {each.key for each in others if each != place}
        lines = [each for each in lines if not names.isdisjoint(names_at(*each))] or lines
        only = tuple(Frame(code.co_filename, line, code.co_qualname) for code, line in lines)
        if place.kind in ("local", "global") and len(only) == 1:
            return only
        local_to = place.owner if place.kind == "local" else None
        kind = "name" if place.kind in ("local", "global") else place.kind
        inner = [(kind, key) for kind, key, _ in reversed(place.through)]
        targets: list[Target] = [(kind, place.key), *inner]
        bound = changed_at(
            targets, stack, held.graph, local_to=local_to, only_bound=True, only_put=True
        )
        if not bound and local_to is None:
            # In an earlier call of a function that runs.
            functions = [(each.f_code.co_filename, each.f_code.co_qualname) for each in stack]
            bound = rebound_in(targets, functions)
        if not bound and place.kind == "item":
            container = place.through[-1][:2] if place.through else ("name", place.root[1])
            bound = put_at(place.code.co_filename, container)
        if not bound and len(only) == 1:
            # What holds it was made with it: `Pair(left=run(x))`.
            bound = only
        return bound or frames_of([(frame.f_code, frame.f_lasti)])

    def _has_successor(self, place: Place, held: _Held, stack: Stack) -> bool:
        """Whether another name was bound to the same memory after the last replay. If the name is
        one of a task that waits, only the same name in another call counts: a task may also watch
        the output."""
        own = self._own[held.graph]
        if held.waits and self._is_replayed_in_another_call(place, held.graph):
            return True
        return any(
            other not in self._held
            and other.in_every_call not in own
            and (not held.waits or _is_same_in_another_call(other, place))
            and held.before.overlaps(value)
            and not self._comes_from(other, place)
            for other, (_, value) in self._holding(held.graph, stack | self._beside(stack)).items()
        )

    def _is_replayed_in_another_call(self, place: Place, graph: WatchedGraph) -> bool:
        """Whether another call of the function that has a variable made the last replay."""
        last = self._sites[graph][-1] if self._sites[graph] else ()
        return place.kind == "local" and any(
            code is place.code and number != place.owner for number, code, _ in last
        )

    def _beside(self, stack: Stack) -> Stack:
        """The user's frames of other tasks and of generators that wait, and of other threads that
        replay."""
        others = frames_of_other_threads() if len(self._threads) > 1 else {}
        frames = [frame for number, frame in others.items() if number in self._threads]
        beside = waiting_beside(stack) | suspended_in(stack)
        for frame in frames:
            beside |= stack_of(frame)
        return beside

    def _is_second_name(self, place: Place, held: _Held, at: Frames, stack: Stack) -> bool:
        """Whether the place is bound to what a name is in the same function, which goes on reading
        that: ``before = y``."""
        line, graph = at[0].line if at else 0, held.graph
        running = _frame_of(place, at, stack)
        if running is None and place.parts:
            return False
        code = place.code if running is None else running.f_code
        own = self._own_names(graph)
        names = own & read_at(code, line) & aliased_at(code.co_filename, line)
        is_captured_there = bool(graph.frames) and graph.frames[0].function == code.co_qualname
        first, last = graph.lines if is_captured_there else (0, -1)
        now = 0 if running is None else line_of((code, running.f_lasti))
        return any(
            other != line
            and runs_after(other, code, line)
            and not first <= other <= last
            # Not only in what comes after the loop that binds and reads it.
            and (runs_after(now, code, other) or not in_one_loop(code, line, now))
            for name in names
            for other in lines_that_read(code, name)
        )

    def _is_of_the_iteration_before(
        self, place: Place, held: _Held, at: Frames, stack: Stack
    ) -> bool:
        """Whether a loop replays, reads the place, and then binds it to the output:
        ``pending = step, y``."""
        line = at[0].line if at else 0
        running = _frame_of(place, at, stack)
        if running is None or held.graph.last_replay is None:
            return False
        code = running.f_code
        now = line_of((code, running.f_lasti))
        replayed = [
            each.line
            for each in held.graph.last_replay.frames
            if (each.file, each.function) == (code.co_filename, code.co_qualname)
        ]
        own = self._own_names(held.graph)
        return (
            bool(replayed)
            and replayed[0] < now < line
            and in_one_loop(code, replayed[0], line)
            and not own.isdisjoint(aliased_at(code.co_filename, line))
        )

    def _is_of_another_call(self, place: Place, held: _Held, at: Frames) -> bool:
        """Whether a statement has bound the place to the result of its own replay, and another one
        of that frame has used the result of the last replay as its own."""
        if held.graph not in self._used or not at:
            return False
        replays, number, used_at = self._used[held.graph]
        bound = statement_of(at[0])
        return (
            replays == held.graph.replays
            and bound != used_at
            and any(
                each == number and bound == statement_at(code, offset)
                for each, code, offset in held.replayed_at
            )
        )

    def _comes_from(self, other: Place, place: Place) -> bool:
        """Whether a line that binds a place may read another one for that."""
        at = self._bindings.bound_at(other)
        lines = [at.line] if at is not None else lines_that_bind(other, other.code)
        return any(place.key in names_at(other.code, line) for line in lines)

    def _is_kept_now_and_then(self, at: Frames, graph: WatchedGraph) -> bool:
        """Whether a line binds a place in a branch that is not always taken, after a replay that
        is not in it."""
        if not at or graph.last_replay is None:
            return False
        replayed = [each for each in graph.last_replay.frames if each.function == at[0].function]
        return is_taken_now_and_then(at[0].file, at[0].line, [each.line for each in replayed[:1]])


def _is_same_in_another_call(one: Place, other: Place) -> bool:
    """Whether two calls of a function have places by one name."""
    return (one.kind, one.key, one.code) == (other.kind, other.key, other.code)


def _is_bound_next(place: Place, stack: Stack) -> bool:
    """Whether it is a variable of a loop that waits for its next item."""
    kind, name, _ = place.root
    return place.kind == kind and any(
        name in loop_targets((frame.f_code, frame.f_lasti))
        and place == (Place.shared if kind == "global" else Place.local)(frame, name)
        for frame in stack.values()
    )


def _codes_that_share(place: Place, frames: Iterable[FrameType]) -> list[CodeType]:
    """The function that has the name which leads to a place, and those inside it that run."""
    kind, name, owner = place.root
    inner = (each for each in frames if kind == "local" and name in each.f_code.co_freevars)
    return [place.code, *(each.f_code for each in inner if id(home_of(each, name)) == owner)]


def _frame_of(place: Place, bound_at: Frames, stack: Stack) -> FrameType | None:
    """The frame that has bound a place: of an attribute, in any function that runs."""
    if not place.parts:
        return next((frame for frame in stack.values() if frame.f_code is place.code), None)
    where = [(each.file, each.function) for each in bound_at[:1]]
    return next(
        (
            frame
            for frame in stack.values()
            if (frame.f_code.co_filename, frame.f_code.co_qualname) in where
        ),
        None,
    )


def _is_read(place: Place, frame: FrameType, names: Names) -> bool:
    """Whether the expression with these names, in a frame, reads a place."""
    if place.kind == "local":
        return place.key in names.local and place.owner == id(home_of(frame, str(place.key)))
    if place.kind == "global":
        return place.key in names.shared and place.owner == id(frame.f_globals)
    # `torch.stack(kept)` reads all items.
    is_of_all = not any(isinstance(each, int) for each in names.parts)

    def is_named(key: str | int) -> bool:
        return key in names.parts or (is_of_all and isinstance(key, int))

    if not is_named(place.key):
        return False
    values = locals_of(frame) if names.local else {}
    named = {id(values.get(name)) for name in names.local}
    named |= {id(frame.f_globals.get(name)) for name in names.shared}
    parts = place.parts
    return any(
        owner in named and all(is_named(key) for _, key, _ in parts[number:])
        for number, (_, _, owner) in enumerate(parts)
    )
