"""Runs captured code of a script again as replays of its graphs begin.

A replay repeats what was captured, where eager code would run with what Python holds by then. So
the captured statements run once more as some replays of a graph begin, and nothing of that stays.
If they record other ops than the capture, or other numbers or tensors, the results decide: what
they compute is compared with what a replay computes from the same memory. Then the host state that
has changed since the capture is set back until it is known which of it matters.
"""

from __future__ import annotations

import contextlib
import copy
import textwrap
import traceback
from collections.abc import Iterator
from dataclasses import dataclass

from cgtool.model import clock
from cgtool.model.capture import Frames
from cgtool.observe.frames import package_part
from cgtool.observe.live_objects import at_end_of
from cgtool.observe.script import events
from cgtool.observe.script.blocks import Block, Gone, block_of, region_of
from cgtool.observe.script.script import ObservedScript
from cgtool.observe.script.state import WatchedGraph
from cgtool.program.boundary import first_line
from cgtool.program.reach import Reachable
from cgtool.recapture.compare import Difference, first_difference
from cgtool.recapture.contained import Stopped, contained
from cgtool.recapture.host_state import Item, Values, plain_values
from cgtool.recapture.iteration import Iteration
from cgtool.recapture.ops import KeptOpRecorder
from cgtool.recapture.trial import Captured, Run, Trial

strict = False
"""Whether a failure of cgtool's own code is raised, as in tests."""
_MOST_GRAPHS = 32
_MOST_OF_LINE = 4
"""Graphs that one line captures."""
_MOST_RUNS = 12
"""Limit for the runs of the code of one graph."""
_SECONDS_OF_RUN = 5.0
_LEAST_SECONDS = 5.0
"""For all runs of a script; as much time as the script itself has taken, if that is more."""
_DUE = frozenset((0, 1, 2, 4, 8, 16, 64, 256, 1024))
"""By how many replays were before: the replays at which the code runs again."""


@dataclass
class Rerun:
    """A difference between a graph and what its code does as a replay begins."""

    graph: WatchedGraph
    difference: Difference
    second: Iteration
    items: tuple[Item, ...]
    """The host state that was shown to make the difference."""
    differing: tuple[str, ...]
    """Names of what has other values than after a replay."""
    place: Frames
    """Where the replay begins."""


@dataclass
class Asked:
    """Code that gives other values if it is not being captured."""

    graph: WatchedGraph
    query: Frames
    differing: tuple[str, ...]


class Regions:
    """Runs what a script captures again as its replays begin."""

    def __init__(self, script: ObservedScript) -> None:
        self._script = script
        self._block: Block | None = None
        self._values: Values = {}
        self._ops: KeptOpRecorder | None = None
        """The ops of the capture in progress."""
        self._known: dict[WatchedGraph, Captured] = {}
        self._found: dict[WatchedGraph, Rerun] = {}
        self._asked: dict[WatchedGraph, Asked] = {}
        self._right: set[WatchedGraph] = set()
        """Graphs whose code did the same as in the capture after it had differed."""
        self._began = clock.monotonic()
        self._spent = 0.0
        script.subscribe(events.CaptureBegan, self._capture_began)
        script.subscribe(events.OpCaptured, self._op_captured)
        script.subscribe(events.CaptureEnded, self._capture_ended)
        script.subscribe(events.CaptureFailed, self._capture_failed)
        script.subscribe(events.GraphDropped, lambda event: self._drop(event.graph))
        script.subscribe(events.ReplayBegins, self._replay_begins)

    # --- captures

    def _capture_began(self, event: events.CaptureBegan) -> None:
        graph = event.graph
        of_line = self._script.graphs_by_place()[graph.frames]
        for known, captured in self._known.items():
            if known.frames == graph.frames:
                captured.region.note_captured_again()
        is_left = len(self._known) < _MOST_GRAPHS and len(of_line) <= _MOST_OF_LINE
        if not is_left:
            return
        self._block = block_of(self._script.frame()) if graph.callable is None else None
        self._ops = KeptOpRecorder({}, self._script.annotations, set())
        self._values = {} if self._block is None else plain_values(Reachable(self._block.roots()))

    def _op_captured(self, event: events.OpCaptured) -> None:
        if self._ops is not None and event.op.call is not None:
            op = event.op
            assert op.call is not None
            self._ops.note(op.call, op.func, op.args, op.kwargs, event.result)

    def _capture_failed(self, _event: events.CaptureFailed) -> None:
        self._block = self._ops = None

    def _capture_ended(self, event: events.CaptureEnded) -> None:
        block, ops, graph = self._block, self._ops, event.graph
        self._block = self._ops = None
        if ops is None:
            return
        if block is not None:
            for other in self._known.values():
                other.region.note_reused(block.used)
        try:
            region = region_of(block, graph.callable)
        except Gone as error:
            self._script.not_run_again[graph.number] = str(error)
            return
        if region is None:
            return
        iteration = Iteration(ops.ops, graph.record, ops.storages, ops.filled)
        self._known[graph] = Captured(graph, region, iteration, self._values, at_end_of(graph))

    def _drop(self, graph: WatchedGraph) -> None:
        self._known.pop(graph, None)

    # --- replays

    def _replay_begins(self, event: events.ReplayBegins) -> None:
        graph = event.graph
        known = self._known.get(graph)
        if known is None or graph.replays not in _DUE or known.runs >= _MOST_RUNS:
            return
        now = clock.monotonic()
        left = max(_LEAST_SECONDS, now - self._began - self._spent) - self._spent
        if left <= 0:
            self._script.not_run_again[graph.number] = "the time for it was used up"
            return
        known.runs += 1
        try:
            with (
                self._unseen(),
                # Whatever stops a run, what it has changed is set back.
                Trial(self._script, known) as trial,
                contained(min(left, _SECONDS_OF_RUN)),
            ):
                self._look(known, trial)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if strict and _is_ours(error):
                raise
            # It cannot run again, for which the program may have many reasons.
            self._script.not_run_again[graph.number] = _why(error)
            if known.runs > 2 and not known.right:
                self._drop(graph)
        self._spent += clock.monotonic() - now

    @contextlib.contextmanager
    def _unseen(self) -> Iterator[None]:
        """Events of what runs inside are not published: it is not part of the script."""
        script = self._script
        order, place = copy.deepcopy(script.order), script.clock
        script.closed = True
        try:
            yield
        finally:
            script.closed = False
            script.order, script.clock = order, place

    def _look(self, captured: Captured, trial: Trial) -> None:
        graph = captured.graph
        again = trial.run()
        self._script.run_again.add(graph.number)
        difference = trial.difference(again)
        if difference is None:
            captured.right += 1
            self._right |= {graph} & self._found.keys()
            if again.queries and graph not in self._asked and graph.replays:
                self._look_at_queries(captured, trial)
            return
        if (
            graph in self._found
            or self._is_for_another(captured, again, difference)
            or self._reads_nothing(again)
        ):
            return
        differing = trial.differing(again, exactly=difference.kind == "number")
        if differing:
            self._found[graph] = Rerun(
                graph,
                difference,
                again.iteration,
                trial.causes(difference),
                tuple(differing),
                self._script.place(),
            )

    def _look_at_queries(self, captured: Captured, trial: Trial) -> None:
        """Code that asks whether it is being captured runs once with the other answer."""
        other = trial.run(is_capturing=False)
        if other.queries and trial.difference(other) is not None:
            differing = trial.differing(other, exactly=False)
            if differing:
                graph = captured.graph
                self._asked[graph] = Asked(graph, other.queries[0], tuple(differing))

    def _reads_nothing(self, again: Run) -> bool:
        """Whether a run reads what a capture has allocated and nothing has written since, so that
        its results are any: a table of another graph that was not replayed yet."""
        keys = {tensor.storage for op in again.iteration.ops for tensor in op.outside}
        read = [self._script.buffers.by_key(key) for key in keys]
        return any(each and each.allocated_in and each.last_write is None for each in read)

    def _is_for_another(self, captured: Captured, again: Run, difference: Difference) -> bool:
        """Whether another graph was captured with what Python holds now (the other half of a step,
        another phase), or graphs of the same line differ in the same: the program chooses."""
        graph = captured.graph
        if difference.kind == "tensor" and graph.replays == 0:
            # The script may copy the results of each replay to where the graph reads.
            return True
        for other, known in self._known.items():
            if other is graph or not other.replayable:
                continue
            if first_difference(known.iteration, again.iteration, by_name=True) is None:
                return True
            between = first_difference(captured.iteration, known.iteration, by_name=True)
            if between is None or not other.is_alternative_to(graph):
                continue
            if (between.at, between.kind) == (difference.at, difference.kind):
                return True
        return False

    # --- the end

    def found(self) -> list[Rerun]:
        """The reruns to report when the script has ended: one of the graphs that a line captures,
        if none of them was right after one had differed."""
        right = {graph.frames for graph in self._right}
        places: dict[Frames, Rerun] = {}
        for graph, rerun in self._found.items():
            if graph.frames not in right:
                places.setdefault(graph.frames, rerun)
        return [*places.values()]

    def asked(self) -> list[Asked]:
        """Code that gives other values if it is not being captured."""
        return [*self._asked.values()]


_LONGEST_REASON = 80
"""Characters of what the program's code has raised."""
_STOPPED = {
    "replay": "it replays a graph",
    "time": "it takes too long",
    "ops": "it runs many more ops than in the capture",
    "memory": "it writes too much memory",
}


def _why(error: BaseException) -> str:
    """Why code did not run again."""
    text = str(error)
    if isinstance(error, Stopped):
        return _STOPPED.get(text, f"it would act outside of the process: {text}")
    if isinstance(error, Gone):
        return text
    reason = textwrap.shorten(first_line(error), _LONGEST_REASON, placeholder=" ...")
    return f"it raised {type(error).__name__}" + (f": {reason}" if text else "")


def _is_ours(error: BaseException) -> bool:
    """Whether cgtool's own code has failed, and not the program, which cannot run again."""
    frames = traceback.extract_tb(error.__traceback__)
    is_last = package_part(frames[-1].filename).startswith("/cgtool/")
    return is_last and not isinstance(error, Gone | Stopped)
