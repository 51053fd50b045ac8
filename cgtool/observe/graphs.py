"""Follows the CUDA graphs that a program captures itself: captures, replays and ends.

``cgtool run`` notes them, and ``cgtool check SCRIPT`` looks for mistakes: each subscribes to a
``GraphFollower``, which knows what belongs together and who captures. It replaces four methods of
``torch.cuda.CUDAGraph``; no mode or global hook is active, and no graph is kept alive.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import FrameType, ModuleType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from cgtool.model import clock
from cgtool.model.ledger import CALLABLES, COMPILE, RESET
from cgtool.observe.frames import Chain, call_user, callers, package_part
from cgtool.observe.waiting import chain_or_waiting
from cgtool.torch_compat import inductor
from cgtool.torch_compat.imports import after_import
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import TRACE_RULES, compile_none_of_our_frames

_now = clock.perf_counter_ns

GRAPHS = "/torch/cuda/graphs.py"
"""The file of ``torch.cuda.graph`` and ``make_graphed_callables``, as ``package_part`` names it."""

State = TypeVar("State")
"""A subscriber's own state for a graph."""


class Beginning(NamedTuple):
    """A capture that has begun."""

    graph: Any
    """The ``CUDAGraph``; whoever keeps it keeps its memory."""
    pool: tuple[int, int] | None
    """As passed to ``capture_begin``."""
    mode: str
    """``capture_error_mode``."""
    chain: Chain
    """The user's calls that lead to it, innermost first."""
    owner: str
    """``torch.compile``, ``make_graphed_callables``, or the function of the user's."""
    key: str
    """``torch.compile``'s name of the graph: ``0/1 forward``."""
    because: str | None
    """Why it is captured again: the reason of ``torch.compile``, or ``RESET``, if the ``CUDAGraph``
    was reset after an earlier capture."""
    warm_up_ns: int | None = None
    """Host time of the warm-up that ``torch.compile`` ran for this capture."""


class Subscriber(Protocol[State]):
    """Callbacks for the events of all graphs, on the thread on which each happens."""

    def protected(self) -> AbstractContextManager[None]:
        """Around all that is ours: what becomes of an error of it. It goes through."""
        return nullcontext()

    def capture_begins(self) -> Any:
        """``capture_begin`` is about to run; what this returns is passed to ``capture_began``."""
        return None

    def capture_expected(self, beginning: Beginning, /) -> Any:
        """``torch.cuda.graph`` will soon call ``capture_begin``, or fail before. What this returns
        is passed to ``capture_began``: what takes time, and can be done before a capture."""
        return None

    def capture_began(self, beginning: Beginning, before: Any, expected: Any, /) -> State | None:
        """``capture_begin`` has returned. None if this graph is not followed any further.
        ``expected``: None where ``torch.cuda.graph`` did not call it."""

    def capture_refused(self, beginning: Beginning, before: Any, error: BaseException, /) -> None:
        """``capture_begin`` has raised."""
        return

    def capture_ends(self, state: State, raised: BaseException | None, /) -> None:
        """``capture_end`` is about to run. ``raised``: the error that ends the captured code."""

    def captured(self, state: State, graph: Any, /) -> None:
        """``capture_end`` has returned: the graph can be replayed."""

    def capture_failed(
        self, state: State, raised: BaseException | None, refused: BaseException | None, /
    ) -> None:
        """The captured code has raised, or ``capture_end`` has, or the graph was freed before."""

    def capture_raised(self, state: State, raised: BaseException, _graph: Any, /) -> bool:
        """The captured code has raised, and ``capture_end`` has returned: a program that handles
        the error may replay the graph. Whether that is followed."""
        self.capture_failed(state, raised, None)
        return False

    def replay(
        self, original: Callable[[Any], None], graphs: dict[int, State], /
    ) -> Callable[[Any], None]:
        """A replacement for ``CUDAGraph.replay``; ``graphs`` are those that can be replayed, by id.
        If it has a method ``forget``, that is called whenever they have changed.

        Called as it is, because it counts: ``cgtool run`` must cost no more than microseconds.
        """

    def gone(self, state: State, end: str, /) -> None:
        """A captured graph is about to be reset (``RESET``), or is ``freed``."""

    def skipped(self, reason: str, /) -> None:
        """Compiled code captures nothing."""


class _Capture(NamedTuple, Generic[State]):
    """A capture in progress."""

    state: State
    handled: BaseException | None
    """The exception that was handled when it began: it is in an ``except`` block."""


def replaying_class(graph_class: Any) -> Any:
    """The class whose ``replay`` runs whatever the program has kept: PyTorch's method, which it may
    have saved before the recording (``graph.replay``), calls that of a class in C++."""
    return next(each for each in reversed(graph_class.__mro__) if "replay" in vars(each))


class _Thread(threading.local):
    expected: tuple[Beginning, Any] | None = None
    """The capture that this thread is about to begin, and the subscriber's state for it."""


class GraphFollower(Generic[State]):
    """Follows every graph of a class from now on, until ``patches`` are undone."""

    def __init__(
        self,
        graph_class: Any,
        subscriber: Subscriber[State],
        patches: Patches,
        *,
        replays_of: Any = None,
    ) -> None:
        """``replays_of``: the class whose ``replay`` is followed, by default ``graph_class``."""
        self.graphs: dict[int, State] = {}
        """The graphs that can be replayed, by ``id`` of the ``CUDAGraph``."""
        self._subscriber = subscriber
        self._protected = subscriber.protected
        self._trees = GraphTrees(patches, subscriber.skipped)
        patches.callback(after_import(TRACE_RULES, self._leave_out_ours))
        self._captures: dict[int, _Capture[State]] = {}
        self._thread = _Thread()
        self._references: dict[int, weakref.ref[Any]] = {}
        self._reset_graphs: set[int] = set()
        """Graphs that were reset after a capture, by id."""
        replays_of = replays_of or graph_class
        replay = subscriber.replay(replays_of.replay, self.graphs)
        self._changed: Callable[[], object] = getattr(replay, "forget", lambda: None)
        patches.set(replays_of, "replay", replay)
        for name, wrapper in (
            ("capture_begin", self._capture_begin),
            ("capture_end", self._capture_end),
            ("reset", self._reset),
        ):
            patches.wrap(graph_class, name, wrapper)

    def _leave_out_ours(self, trace_rules: ModuleType) -> None:
        with self._protected():
            compile_none_of_our_frames(trace_rules)

    @property
    def capturing(self) -> list[State]:
        """The graphs whose capture is in progress, on any thread."""
        return [capture.state for capture in list(self._captures.values())]

    def forget(self) -> list[State]:
        """Follow none of the graphs that there are; returns those whose capture is in progress."""
        captures = self.capturing
        for table in (self.graphs, self._captures, self._references, self._reset_graphs):
            table.clear()
        self._changed()
        return captures

    def follow(self, graph: Any, state: State) -> None:
        """Follow a graph that can be replayed, and whose capture was not seen."""
        self._refer(graph)
        self._put(graph, state)

    def _put(self, graph: Any, state: State) -> None:
        self.graphs[id(graph)] = state
        self._changed()

    def expect(self, frame: FrameType | None, graph: Any, *args: Any) -> None:
        """``torch.cuda.graph``, called by ``frame``, will soon call ``capture_begin`` with these
        arguments. Who captures is looked up now, and not during the capture."""
        beginning = self.beginning(frame, graph, *args)
        self._thread.expected = beginning, self._subscriber.capture_expected(beginning)

    def expect_none(self) -> None:
        """It has done so, or failed."""
        self._thread.expected = None

    def _expected(
        self,
        graph: Any,
        pool: Any = None,
        capture_error_mode: str = "global",
        *_args: Any,
        **_kwargs: Any,
    ) -> tuple[Beginning, Any] | None:
        """The expected capture, if ``capture_begin`` has these arguments; else None."""
        expected, self._thread.expected = self._thread.expected, None
        if expected is not None and expected[0][:3] == (graph, pool, capture_error_mode):
            return expected
        return None

    def _capture_begin(self, original: Any, graph: Any, *args: Any, **kwargs: Any) -> None:
        before = None
        with self._protected():
            before = self._subscriber.capture_begins()
        try:
            call_user(original, graph, *args, **kwargs)
        except BaseException as error:
            with self._protected():
                beginning = self.beginning(sys._getframe(1), graph, *args, **kwargs)
                self._subscriber.capture_refused(beginning, before, error)
            raise
        with self._protected():
            beginning, expected = self._expected(graph, *args, **kwargs) or (
                self.beginning(sys._getframe(1), graph, *args, **kwargs),
                None,
            )
            state = self._subscriber.capture_began(beginning, before, expected)
            if state is not None:
                self._refer(graph)
                self._captures[id(graph)] = _Capture(state, sys.exc_info()[1])

    def beginning(
        self,
        frame: FrameType | None,
        graph: Any,
        pool: Any = None,
        capture_error_mode: str = "global",
        *_args: Any,
        **_kwargs: Any,
    ) -> Beginning:
        """The capture that ``capture_begin`` with these arguments begins, called by ``frame``."""
        chain = chain_or_waiting(frame)
        key, because, warm_up_ns = self._trees.current()
        owner = COMPILE if key else _owner(frame, chain)
        if because is None and id(graph) in self._reset_graphs:
            because = RESET
        return Beginning(graph, pool, capture_error_mode, chain, owner, key, because, warm_up_ns)

    def _refer(self, graph: Any) -> None:
        known = id(graph)
        self._references[known] = weakref.ref(graph, functools.partial(self._freed, known))

    def _capture_end(self, original: Any, graph: Any) -> None:
        capture = self._captures.pop(id(graph), None)
        if capture is None:
            call_user(original, graph)
            return
        state, error = capture.state, sys.exc_info()[1]
        raised = None if error is capture.handled else error
        try:
            with self._protected():
                self._subscriber.capture_ends(state, raised)
        except BaseException as error:  # Ctrl-C, or what a signal handler of the program raises
            try:
                call_user(original, graph)  # the capture must not go on
            finally:
                with self._protected():
                    self._subscriber.capture_failed(state, error, None)
            raise
        try:
            call_user(original, graph)
        except BaseException as refused:
            with self._protected():
                self._subscriber.capture_failed(state, raised, refused)
            raise
        with self._protected():
            if raised is None:
                self._subscriber.captured(state, graph)
                self._put(graph, state)
            elif self._subscriber.capture_raised(state, raised, graph):
                self._put(graph, state)

    def _reset(self, original: Any, graph: Any) -> None:
        if self._gone(id(graph), RESET):
            self._reset_graphs.add(id(graph))
        call_user(original, graph)

    def _freed(self, known: int, reference: weakref.ref[Any]) -> None:
        if self._references.get(known) is not reference:
            return  # another graph has its id
        del self._references[known]
        self._reset_graphs.discard(known)
        self._gone(known, "freed")
        capture = self._captures.pop(known, None)
        if capture is not None:
            with self._protected():
                self._subscriber.capture_failed(capture.state, None, None)

    def _gone(self, known: int, end: str) -> bool:
        """Whether the graph could be replayed until now."""
        state = self.graphs.pop(known, None)
        self._changed()
        if state is not None:
            with self._protected():
                self._subscriber.gone(state, end)
        return state is not None


# What the graph trees of ``torch.compile`` know about their captures.


class TreeCapture(NamedTuple):
    """A capture made by graph trees."""

    key: str = ""
    """``0/1 forward``; empty if graph trees do not capture."""
    because: str | None = None
    """Why the same function is captured again."""
    warm_up_ns: int | None = None
    """Host time of the warm-up iterations."""


class _TreeThread(threading.local):
    capture = TreeCapture()
    """The graph tree's capture that this thread is about to begin."""
    mismatch: Callable[[], str] | None = None
    """Returns why the last graph that was checked cannot be replayed; called only if it is captured
    again."""


class GraphTrees:
    """Follows graph trees from the import of their modules on, until ``patches`` are undone."""

    def __init__(self, patches: Patches, skipped: Callable[[str], None]) -> None:
        """``skipped`` is called with the reason if compiled code captures nothing."""
        self._thread = _TreeThread()
        self._skipped = skipped
        self._warm_ups: dict[tuple[int, Any], int] = {}
        """Host time, by manager and function."""
        for point, wrapper in (
            (inductor.SKIP, self._skip),
            (inductor.WARM_UP, self._warm_up),
            (inductor.CHECK, self._check),
            (inductor.RECORD, self._record),
        ):
            patches.wrap_later(*point, wrapper)

    def current(self) -> TreeCapture:
        """The graph tree's capture that this thread is about to begin."""
        return self._thread.capture

    def _skip(self, original: Any, message: str, *args: Any, **kwargs: Any) -> Any:
        self._skipped(message)
        return original(message, *args, **kwargs)

    def _warm_up(self, original: Any, manager: Any, inputs: Any, function: Any) -> Any:
        begin = _now()
        try:
            return original(manager, inputs, function)
        finally:
            known = id(manager), function
            self._warm_ups[known] = self._warm_ups.get(known, 0) + _now() - begin

    def _check(self, original: Any, node: Any, inputs: Any) -> Any:
        answer = original(node, inputs)
        self._thread.mismatch = None if inductor.fits(answer) else answer[1]
        return answer

    def _record(self, original: Any, manager: Any, inputs: Any, function: Any) -> Any:
        thread = self._thread
        mismatch, thread.mismatch = thread.mismatch, None
        thread.capture = TreeCapture(
            inductor.key_of(manager, function),
            None if mismatch is None else mismatch().strip(),
            self._warm_ups.pop((id(manager), function), None),
        )
        try:
            return original(manager, inputs, function)
        finally:
            thread.capture = TreeCapture()


def _owner(frame: FrameType | None, chain: Chain) -> str:
    """The owner of a capture: PyTorch for its user, or a function of the user's."""
    for each in callers(frame):
        part = package_part(each.f_code.co_filename)
        if part.startswith("/torch/_inductor/"):
            return COMPILE
        if part == GRAPHS and each.f_code.co_name == CALLABLES:
            return CALLABLES
    return chain[0][0].co_qualname if chain else ""
