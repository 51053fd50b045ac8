"""Notes what a program does with its graphs: captures, replays, and their ends.

No graph is kept alive. Outside captures only replays are followed, unless ``--times`` asks for
more.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

from cgtool.model import clock
from cgtool.model.journal import JournalWriter
from cgtool.model.ledger import COMPILE
from cgtool.model.records import Finished, GraphEnded, Lost, Pools, Skipped, Unseen
from cgtool.observe.captured_calls import CapturedCalls
from cgtool.observe.frames import call_user, frames_of_other_threads
from cgtool.observe.graphs import Beginning, GraphFollower, Subscriber, replaying_class
from cgtool.recorder import notes
from cgtool.recorder.adapters import ADAPTERS, follow_engine
from cgtool.recorder.addresses import NO_LOOK, Addresses, Changes
from cgtool.recorder.capture import Capture, Expected, Start
from cgtool.recorder.captures import Captures
from cgtool.recorder.costs import CaptureCosts
from cgtool.recorder.eager_steps import EagerSteps
from cgtool.recorder.events import Events
from cgtool.recorder.note_counters import NoteCounters, kept_of, take_noted
from cgtool.recorder.recorded_device import RecordedDevice, ReplayTimes
from cgtool.recorder.replays import GraphReplays, counted_replay
from cgtool.torch_compat import weak
from cgtool.torch_compat.patches import Patches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cgtool.torch_compat.allocator import PoolSegment

_POOLS_READ = 32
"""How many pools that end before the process are read: a program may make one for each step."""


class _Graph(GraphReplays):
    """A graph, from its capture on."""

    __slots__ = ("calls", "capture", "handled", "outside", "pool")

    def __init__(self, number: int, capture: Capture | None) -> None:
        super().__init__(number)
        self.capture = capture
        """The capture in progress, if there is one."""
        self.pool: tuple[int, int] | None = None
        self.outside: Sequence[CodeType] = ()
        """The code that leads to its capture."""
        self.calls: CapturedCalls | None = None
        """The calls in the capture."""
        self.handled: Callable[[], None] | None = None
        """To be called when it is first replayed, although its code has raised."""


class Recorder(Subscriber[_Graph]):
    """Follows the graphs of this process and writes them to its journal."""

    def __init__(self, device: RecordedDevice, journal: JournalWriter, patches: Patches) -> None:
        """Follow every graph from now on."""
        self._device = device
        self.journal = journal
        self._numbers = itertools.count()
        self._is_fork = self._finished = False
        self._pools = Counter[tuple[int, int]]()
        """How many graphs each pool has."""
        self._pools_read = 0
        self._segments: dict[tuple[int, int], Sequence[PoolSegment]] = {}
        """Those of each pool after its last capture."""
        self._patches = patches
        weak.hide(patches)
        self._events = Events(device, self.journal, self._changes)
        self._costs = CaptureCosts(
            patches,
            self.refused_before,
            self.not_followed,
            self._is_capturing,
            self.expected,
            self._events.compiled,
        )
        self._captures = Captures(device, self.journal, self._costs)
        self._not_followed = set[type]()
        self._notes = NoteCounters(self.journal)
        self._addresses = Addresses(device, self.journal, patches)
        self._steps = EagerSteps(self.journal, self._captures.is_capturing, self._notes, patches)
        self._times: ReplayTimes | None = None
        self._watch_for_hangs: Callable[[], None] = lambda: None
        self._replaying_class = replaying_class(device.graph_class)
        self._graphs: GraphFollower[_Graph] = GraphFollower(
            device.graph_class, self, patches, replays_of=self._replaying_class
        )
        for name in ("_exit", "execv", "execve"):  # which the other functions of `os` call
            patches.wrap(os, name, self._leave)
        patches.callback(notes.listen, None)
        notes.listen(self._events.add)
        for adapter in ADAPTERS:
            follow_engine(adapter, patches, self.journal.lost)

    def _is_capturing(self, thread: int) -> bool:
        return self._captures.is_capturing(thread)

    def _changes(self) -> Changes:
        changes = NO_LOOK
        if not self._captures.are_in_progress:
            with self.protected():  # the event is noted in any case
                changes = self._addresses.changes()
        return changes

    def mark_ready(self, after: int) -> None:
        """Mark the event ``ready`` after so many replays."""
        self._events.mark_ready(after)

    def time_replays(self) -> None:
        """Note how long the GPU takes for replays."""
        journal, owner = self.journal, self._device.graph_class
        self._times = self._device.time_replays(lambda: journal, journal.lost, self._patches)
        if self._times is not None and hasattr(owner, "instantiate"):
            self._patches.wrap(owner, "instantiate", self._instantiate)

    def step_replays(self) -> None:
        """Run the nodes of replays one at a time."""
        from cgtool.recorder.steps import Steps

        owner, graphs = self._replaying_class, self._graphs.graphs
        Steps(self._device, owner, self.journal, self._captures, graphs, self._patches)

    def watch_for_hangs(self, folder: Path) -> None:
        """Write the stacks of the process when ``cgtool run`` asks for them."""
        from cgtool.recorder.watchdog import watch_for_hangs

        self._watch_for_hangs = partial(watch_for_hangs, folder, self.journal, self._costs.entering)
        self._watch_for_hangs()

    @property
    def forkable(self) -> AbstractContextManager[Any]:
        """To be entered while the process forks."""
        return self._captures.idle()

    def forked(self, name: str) -> None:
        """This process was forked: the graphs are its parent's. ``name``: of its own journal."""
        self.journal.renew(name)
        self._captures.renew()
        self._notes.renew()
        self._events.renew()
        self._addresses.renew()
        self._numbers = itertools.count()
        self._is_fork = True
        self._watch_for_hangs()
        self._pools.clear()
        self._segments.clear()
        for graph in self._graphs.forget():
            with self.protected():
                _taken(graph).stop()
        self._steps.renew()

    def finish(self, error: str = "") -> None:
        """The process ends by itself: whatever is freed from now on lived until its end. ``error``:
        the exception that ends it."""
        self._addresses.is_over = True
        self._captures.finish()
        if self._times is not None:
            with self.protected():
                self._times.finish()
        with self.protected():
            self._read_pools(self._pools)
        self._events.note_allocations()
        self._captures.note_rank()
        self.journal.append(Finished(clock.time_ns(), error))
        self._finished = True

    def stop(self) -> None:
        """The recording ends before the process does."""
        for graph in self._graphs.forget():
            with self.protected():
                self._captures.failed(_taken(graph), None, "the recording ended during its capture")
        self.finish()

    def protected(self) -> AbstractContextManager[None]:
        return self.journal.protected()

    def skipped(self, reason: str) -> None:
        self.journal.append(Skipped(reason))

    def capture_begins(self) -> Start:
        return self._captures.begins()

    def expected(self, context: Any) -> None:
        """``torch.cuda.graph`` is about to capture; None: it has begun to, or failed."""
        with self.protected():
            if context is None:
                self._graphs.expect_none()
            elif isinstance(context.cuda_graph, self._device.graph_class):
                pool = next(iter(getattr(context, "pool", ())), None)
                arguments = context.cuda_graph, pool, context.capture_error_mode
                self._graphs.expect(sys._getframe(1), *arguments)

    def capture_expected(self, beginning: Beginning) -> Expected:
        return self._captures.expect(beginning)

    def capture_began(
        self, beginning: Beginning, start: Start | None, expected: Expected | None
    ) -> _Graph:
        number, beginning = next(self._numbers), _with_note(beginning)
        graph = _Graph(number, self._captures.began(number, beginning, start, expected))
        graph.outside = [code for code, _ in beginning.chain]
        if beginning.owner != COMPILE:
            graph.calls = self._steps.look_at()
        if any(beginning.pool or ()):  # without one, or with zeros, PyTorch makes a new one
            graph.pool = _pool_of(beginning.pool)
        return graph

    def capture_refused(
        self, beginning: Beginning, start: Start | None, error: BaseException
    ) -> None:
        self._captures.refused(next(self._numbers), _with_note(beginning), error)

    def not_followed(self, context: Any) -> None:
        """``torch.cuda.graph`` has begun a capture that was not seen."""
        kind = type(context.cuda_graph)
        if kind not in self._not_followed:
            self._not_followed.add(kind)
            self.journal.append(
                Lost(
                    f"captures and replays of {kind.__module__}.{kind.__qualname__} are not "
                    "recorded: it is not derived from torch.cuda.CUDAGraph, and calls none of its "
                    "methods",
                    captures=True,
                )
            )

    def refused_before(self, context: Any, error: Exception) -> None:
        """``torch.cuda.graph`` has raised before ``capture_begin``."""
        with self.protected():
            graph, mode = context.cuda_graph, context.capture_error_mode
            beginning = self._graphs.beginning(sys._getframe(1), graph, None, mode)
            self.capture_refused(beginning, None, error)

    def capture_ends(self, graph: _Graph, raised: BaseException | None) -> None:
        if graph.capture is not None:
            self._captures.ends(graph.capture, raised, sys._getframe(1))

    def captured(self, graph: _Graph, cuda_graph: Any) -> None:
        over_ns = clock.perf_counter_ns()
        self._can_be_replayed(graph, cuda_graph)
        capture = _taken(graph)
        with self.protected():
            if graph.pool is not None:
                capture.segments = self._device.pool_segments(graph.pool)
                self._segments[graph.pool] = capture.segments
            # A list: graphs may end meanwhile.
            kept = itertools.chain.from_iterable(list(self._segments.values()))
            capture.memory = self._addresses.captured(
                graph, capture.storages(), sys._getframe(1), kept
            )
        self._captures.captured(capture, graph.pool, over_ns)
        self._events.note_allocations()
        seen = ((), ()) if graph.calls is None else (graph.calls.around_most(), graph.calls.seen())
        self._steps.captured(graph, graph.outside, *seen)
        self._new_executable(graph, cuda_graph)

    def capture_raised(self, graph: _Graph, raised: BaseException, cuda_graph: Any) -> bool:
        over_ns = clock.perf_counter_ns()
        self._can_be_replayed(graph, cuda_graph)
        graph.handled = self._captures.raised(_taken(graph), raised, graph.pool, over_ns)
        return True

    def _can_be_replayed(self, graph: _Graph, cuda_graph: Any) -> None:
        if graph.pool is None:
            with contextlib.suppress(RuntimeError):
                graph.pool = _pool_of(cuda_graph.pool())
        if graph.pool is not None:
            self._pools[graph.pool] += 1
        graph.count_in(self.journal)

    def capture_failed(
        self, graph: _Graph, raised: BaseException | None, refused: BaseException | None
    ) -> None:
        reason = "the graph was freed during its capture"
        is_raised = raised is not None
        self._captures.failed(_taken(graph), raised or refused, reason, is_raised=is_raised)

    def replay(
        self, original: Callable[[Any], None], graphs: dict[int, _Graph]
    ) -> Callable[[Any], None]:
        from cgtool.torch_compat import op_watch

        return counted_replay(
            original,
            graphs,
            self._unseen,
            self._first_replay,
            self._addresses,
            self.journal,
            self._notes,
            self._events.replayed,
            op_watch.load(),
        )

    def gone(self, graph: _Graph, end: str) -> None:
        graph.stop_stepping()
        self._addresses.ended(graph)
        if self._finished:
            return
        if graph.handled is None:
            self.journal.append(GraphEnded(clock.time_ns(), graph.number, end))
        if graph.pool is not None:
            self._pools[graph.pool] -= 1
            if not self._pools[graph.pool]:
                self._segments.pop(graph.pool, None)
                if self._pools_read < _POOLS_READ:
                    self._pools_read += 1
                    self._read_pools((graph.pool,))

    def _leave(self, original: Any, *args: Any, **kwargs: Any) -> None:
        """Python ends without its exit handlers, or another program takes its place."""
        with self.protected():
            self._captures.finish()
            self._events.note_allocations()
        # Another thread may hang in the allocator, and this one wants to end the process anyway.
        if not frames_of_other_threads():
            with self.protected():
                self._read_pools(self._pools)
        original(*args, **kwargs)

    def _unseen(self, cuda_graph: Any) -> _Graph | None:
        """A graph that is replayed although its capture was not seen; None after the end, and in a
        forked process, where the graph is the parent's."""
        graph = None
        with self.protected(), self.journal.lock:
            if not (self._finished or self._is_fork):
                graph = _Graph(next(self._numbers), None)
                graph.count_in(self.journal)
                self.journal.append(Unseen(clock.time_ns(), graph.number))
                self._graphs.follow(cuda_graph, graph)
        return graph

    def _first_replay(self, graph: _Graph, cuda_graph: Any, spent_ns: int) -> None:
        if graph.handled is not None:
            with self.protected():
                graph.handled()
            graph.handled = None
        self.journal.first_replay(graph.number, spent_ns)
        # With ``keep_graph``, the first replay instantiates.
        self._new_executable(graph, cuda_graph)

    def _instantiate(self, original: Any, cuda_graph: Any) -> None:
        call_user(original, cuda_graph)
        graph = self._graphs.graphs.get(id(cuda_graph))
        if graph is not None:
            self._new_executable(graph, cuda_graph)

    def _new_executable(self, graph: _Graph, cuda_graph: Any) -> None:
        if self._times is not None:
            with self.protected():
                self._times.new_executable(cuda_graph, graph.number)

    def _read_pools(self, pools: Collection[tuple[int, int]]) -> None:
        if pools:
            from cgtool.torch_compat.allocator import pool_sizes

            segments = itertools.chain.from_iterable(map(self._device.pool_segments, pools))
            sizes = pool_sizes(segments)
            self.journal.append(Pools(clock.time_ns(), sizes))


def _with_note(beginning: Beginning) -> Beginning:
    """The beginning with what the program noted for it as its key."""
    # A note before a capture of torch.compile is for the replay that follows.
    if beginning.owner == COMPILE or not (noted := take_noted()):
        return beginning
    return beginning._replace(key=notes.key_of(kept_of(noted)))


def _pool_of(numbers: Any) -> tuple[int, int]:
    first, second = numbers
    return int(first), int(second)


def _taken(graph: _Graph) -> Capture:
    """The capture of a graph, which is over."""
    if graph.calls is not None:
        graph.calls.stop()
    capture, graph.capture = graph.capture, None
    assert capture is not None
    return capture
