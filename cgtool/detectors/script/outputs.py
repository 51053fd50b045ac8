"""What becomes of a graph's outputs: read too early, kept too long, read when it is gone."""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch

from cgtool.detectors.reporting import Detector
from cgtool.detectors.script.not_run import WARM_UP
from cgtool.findings import code
from cgtool.model.capture import Frames
from cgtool.observe.frames import frames_of, position_of
from cgtool.observe.host_values import array_address
from cgtool.observe.script import events
from cgtool.observe.script.containers import Holding, PutOffCall, holdings
from cgtool.observe.script.script import called_by_pytorch
from cgtool.observe.script.state import Buffer, HandedCall, Op, WatchedGraph
from cgtool.observe.source import called_at, operands_at, takes_loop_targets
from cgtool.observe.tensors import key_of, listed_tensors, tensors_in
from cgtool.torch_compat.storages import StorageRef
from cgtool.torch_compat.weak import Weak

CAPTURE_DOES_NOT_EXECUTE = code("capture-does-not-execute")
OUTPUT_OF_DROPPED_GRAPH = code("output-of-dropped-graph")
OUTPUT_OVERWRITTEN_BY_NEXT_REPLAY = code("output-overwritten-by-next-replay")


_COMPARISONS = (
    "aten::sub.", "aten::rsub.", "aten::eq.", "aten::ne.", "aten::equal", "aten::isclose",
    "aten::allclose", "aten::mse_loss", "aten::dist", "aten::lt.", "aten::le.", "aten::gt.",
    "aten::ge.", "aten::minimum", "aten::maximum", "aten::fmin", "aten::fmax", "aten::div.",
    "aten::lerp.", "aten::where.self", "aten::smooth_l1_loss", "aten::huber_loss",
    "aten::logical_xor", "aten::bitwise_xor",
)  # fmt: skip
"""Ops whose result is trivial for two arguments that are one tensor."""
_EQUALITIES = ("eq", "ne", "not_equal", "equal", "isclose", "allclose")
"""Functions that compare two tensors by ``aten::eq`` and ``aten::ne``, which others (``isfinite``)
run on one."""


class Outputs(Detector):
    """Outputs that are read before any replay, or kept over several."""

    def start(self) -> None:
        self._looked_at: dict[int, int] = {}
        """By key of an output: replays of its graph at the last search for copies."""
        self._kept: dict[int, int] = {}
        """By key of a buffer of the script that a graph writes: how many items of one container
        were its memory at the last search."""
        self._before: defaultdict[WatchedGraph, deque[Counter[Holding]]]
        self._before = defaultdict(lambda: deque(maxlen=2))
        """How many items of each container had its outputs when each of its last replays began."""
        self._piled: dict[Holding, Callable[[], Frames]] = {}
        """Where the next replay found another item, and what puts it there."""
        self._handed: list[HandedCall] = []
        """Calls with outputs that have not begun."""
        self._views: dict[int, _View] = {}
        """By id: views of outputs that eager code made after a replay, and that nothing has read
        yet."""
        self._stale: dict[WatchedGraph, tuple[int, _View]] = {}
        """A view that was first read after a later replay, and after how many."""
        self._early: defaultdict[tuple[int, str], set[Frames]] = defaultdict(set)
        """Where an output was read before the first replay, by its key and the name of the op."""

    def on_op_captured(self, event: events.OpCaptured) -> None:
        # A captured op did the same before, too early: that was its warm-up, which is harmless.
        for tensor in event.op.read if self._early else ():
            for frames in self._early.pop((key_of(tensor) or 0, event.op.name), ()):
                self.findings.drop(CAPTURE_DOES_NOT_EXECUTE, frames)

    def on_tensors_handed(self, event: events.TensorsHanded) -> None:
        self._handed.append(event.call)

    def on_replay_begins(self, event: events.ReplayBegins) -> None:
        graph = event.graph
        for handed in self._handed:
            if graph in handed.graphs and not handed.has_begun:
                handed_to, end = (
                    ("a queue", "until it is taken out")
                    if handed.in_queue
                    else ("another thread", "for that thread")
                )
                self.report(
                    OUTPUT_OVERWRITTEN_BY_NEXT_REPLAY,
                    f"{handed_to} gets the output of {graph.name} here, and the next replay, which "
                    f"overwrites it, does not wait {end}",
                    handed.place,
                    graphs=(graph,),
                )
                handed.may_begin.set()
        self._handed = [
            each for each in self._handed if not (each.has_begun or each.may_begin.is_set())
        ]
        if not 0 < graph.replays <= _SEARCHES:
            return

        def memory(item: Any) -> Hashable:
            buffer = self.script.buffers.find(item) if isinstance(item, torch.Tensor) else None
            own = buffer is not None and buffer.allocated_in is graph
            return _memory_of(buffer, item) if own else None

        now: Counter[Holding] = Counter()
        before = self._before[graph]
        for place, count, frames in holdings(self.script.frame(), memory, _FEW):
            now[place] = max(now[place], count)
            if _is_piled(place, count, before):
                self._piled[place] = frames
        before.append(now)

    def on_eager_op(self, event: events.EagerOp) -> None:
        op = event.op
        for tensor in op.read:
            self._look_at_read(tensor, op.name)
            self._look_for_copies(tensor)
            self._look_at_view(tensor)
        self._note_views(event)
        self._look_for_comparison(op)
        for value in (*op.args, *op.kwargs.values()):
            if op.read and isinstance(value, list | tuple):
                self._look_for_one_buffer(list(tensors_in(value)))

    def on_host_read(self, event: events.HostRead) -> None:
        self._look_for_copies(event.tensor)
        self._look_at_view(event.tensor)

    def on_host_waited(self, event: events.HostWaited) -> None:
        if event.tensor is None:
            return
        self._look_at_read(event.tensor, event.call)
        self._look_for_copies(event.tensor)
        self._look_at_view(event.tensor)

    def _note_views(self, event: events.EagerOp) -> None:
        given = set(map(id, event.op.tensors))
        for tensor in listed_tensors((event.result,)):
            graph = self.script.buffers.allocator_of(tensor)
            if graph is None or not graph.replays or id(tensor) in given:
                continue
            if len(self._views) >= _VIEWS:
                self._views = {key: view for key, view in self._views.items() if view.tensor()}
            if len(self._views) < _VIEWS:
                memory = _memory_of(self.script.buffers.find(tensor), tensor)
                place = self.script.place()
                self._views[id(tensor)] = _View(Weak(tensor), graph, graph.replays, memory, place)

    def _look_at_view(self, tensor: torch.Tensor) -> None:
        """Rows of an output, each kept after another replay: a row that is first read after a later
        replay holds what that one has written."""
        view = self._views.pop(id(tensor), None)
        if view is None or view.tensor() is not tensor or view.graph.replays == view.replays:
            return
        replays, other = self._stale.get(view.graph, (0, view))
        if replays != view.graph.replays:
            self._stale[view.graph] = view.graph.replays, view
        elif other.replays != view.replays and other.memory != view.memory:
            self.report(
                OUTPUT_OVERWRITTEN_BY_NEXT_REPLAY,
                f"parts of the output of {view.graph.name} are kept after several replays and read "
                "after the last one, which has overwritten the others",
                view.place,
                graphs=(view.graph,),
            )

    def _look_for_copies(self, tensor: torch.Tensor) -> None:
        """An output that is read, and that a container holds several times."""
        buffer = self.script.buffers.find(tensor)
        graph = None if buffer is None else buffer.allocated_in
        if buffer is not None and graph is None and buffer.last_write is not None:
            graph = buffer.last_write.graph
        if buffer is None or graph is None or graph.replays < 2:
            return
        if self._looked_at.get(buffer.key) != graph.replays:
            self._looked_at[buffer.key] = graph.replays
            frames, items = self._kept_at(tensor) or ((), 1)
            # Of its own memory the script may keep several names; a result is kept once more after
            # each replay.
            before = 1 if buffer.allocated_in is graph else self._kept.get(buffer.key, items)
            self._kept[buffer.key] = items
            if before < items:
                self._report_overwritten(graph, frames or None)

    def _look_at_read(self, tensor: torch.Tensor, call: str) -> None:
        buffer = self.script.buffers.find(tensor)
        if buffer is None:
            return
        for graph in self.script.replayable():
            if graph.replays == 0 and _is_result(graph, buffer):
                self._early[buffer.key, call].add(self.script.place())
                use = graph.external.get(buffer.key)
                made_by = buffer.allocated_by or (use and use.call)
                made_at = frames_of(made_by.chain) if made_by else ()
                self.report(
                    CAPTURE_DOES_NOT_EXECUTE,
                    f"an output of {graph.name} is read before its first replay; a capture runs "
                    "nothing",
                    fix=WARM_UP if self._is_captured_code(graph) else None,
                    evidence=tuple(f"computed at {made.short}" for made in made_at[:1]),
                    graphs=(graph,),
                )
                return

    def _is_captured_code(self, graph: WatchedGraph) -> bool:
        """Whether the line that runs is of a function that ran in the capture: it uses what the
        captured call has computed and kept (a table that is built when it is first needed)."""
        return any((at.file, at.function) in graph.functions for at in self.script.place()[:1])

    def _look_for_comparison(self, op: Op) -> None:
        """An output that is compared with itself: one of its names was meant for an earlier one."""
        is_comparison = op.name.startswith(_COMPARISONS)
        if len(op.tensors) < 2 or not (is_comparison or self._takes_loop_targets(op)):
            return
        # A loss is a function of PyTorch in Python.
        if called_by_pytorch(but_for=torch.nn.functional.__file__):
            return
        # A mask comes before what it selects from.
        first, second = op.tensors[-2:] if op.name.startswith("aten::where.") else op.tensors[:2]
        graph = self.script.buffers.allocator_of(first)
        last = None if graph is None else graph.last_replay
        same = first.data_ptr() == second.data_ptr() and first.shape == second.shape
        if graph is None or graph.callable is not None or last is None:
            # Two calls of a graphed callable are graphed-callable-called-twice.
            return
        if same and graph.replays > 1 and not self._is_test_for_nan(op):
            self.report(
                OUTPUT_OVERWRITTEN_BY_NEXT_REPLAY,
                f"an earlier output of {graph.name} is used together with that of this replay, but "
                "both are one buffer, which this replay overwrites",
                last.frames,
                evidence=tuple(f"used at {line.short}" for line in self.script.place()[:1]),
                graphs=(graph,),
            )

    def _takes_loop_targets(self, op: Op) -> bool:
        """What one loop takes together was not meant to be one tensor, whatever the op."""
        first, second = op.tensors[:2]
        return first.data_ptr() == second.data_ptr() and any(
            takes_loop_targets(position_of(site)) for site in self.script.chain()[:1]
        )

    def _is_test_for_nan(self, op: Op) -> bool:
        """`torch.isfinite(out)`, `out != out`: compared with itself on purpose."""
        if not op.name.startswith(("aten::eq.", "aten::ne.")):
            return False
        sites = self.script.chain()[:1]
        called = "".join(map(called_at, map(position_of, sites)))
        operands = {text for site in sites for text in operands_at(position_of(site))}
        if called:
            return called not in _EQUALITIES
        # `run() == run()` has two results.
        return len(operands) == 1 and "(" not in operands.pop()

    def _look_for_one_buffer(self, tensors: list[torch.Tensor]) -> None:
        """Several outputs of replays that are one buffer, as in ``torch.stack(outputs)``."""
        first: dict[tuple[int, tuple[int, ...]], torch.Tensor] = {}
        for tensor in tensors:
            graph = self.script.buffers.allocator_of(tensor)
            if graph is None or graph.replays < 2:
                continue
            known = first.setdefault((tensor.data_ptr(), tuple(tensor.shape)), tensor)
            if known is tensor and sum(other is tensor for other in tensors) < 2:
                continue
            kept = self._kept_at(tensor)
            self._report_overwritten(graph, None if kept is None else kept[0] or None)
            return

    def _report_overwritten(self, graph: WatchedGraph, frames: Frames | None) -> None:
        if graph.callable is None or not graph.callable.called_twice:
            self.report(
                OUTPUT_OVERWRITTEN_BY_NEXT_REPLAY,
                f"the output of {graph.name} is kept several times; all of these are one "
                "buffer, which holds the result of the last replay",
                frames,
                graphs=(graph,),
            )

    def _kept_at(self, tensor: torch.Tensor) -> tuple[Frames, int] | None:
        """The line that puts tensors of one memory, again and again, into a container, or () if
        some line does, and how many are there; None if none is kept several times. ``tensor`` is
        such a tensor, or a view. Arrays of NumPy may have the memory too."""
        buffer = self.script.buffers.find(tensor)
        storage = StorageRef(tensor)

        def memory(item: Any) -> Hashable:
            if isinstance(item, torch.Tensor):
                own = self.script.buffers.find(item) is buffer
                return _memory_of(buffer, item) if own else None
            address = array_address(item) or 0
            own = storage.address <= address < storage.address + storage.bytes
            return (address, tuple(item.shape)) if own else None

        graph = None if buffer is None else buffer.allocated_in
        before = deque() if graph is None else self._before[graph]
        # Large containers take long: what a script piles up in them was noted when it began to.
        replays = 0 if graph is None else graph.replays
        is_rare = replays <= _WHOLE_SEARCHES or replays & (replays - 1) == 0
        largest = math.inf if is_rare else _FEW
        piled = [
            frames
            for place, frames in self._piled.items()
            if (place[2].memory if isinstance(place[2], PutOffCall) else place[2])
            == _memory_of(buffer, tensor)
        ]
        for place, count, frames in holdings(self.script.frame(), memory, largest):
            # What was in a container before the last replay may be there several times on purpose.
            # So may several calls that are made after every replay.
            is_new = not isinstance(place[2], PutOffCall) and not (before and before[-1][place])
            if count > 1 and (is_new or _is_piled(place, count, before)):
                # A new container may have its items from one in which they were piled up.
                found = (piled[0] if piled and is_new else frames)()
                return found or next(filter(None, (each() for each in piled)), ()), count
        return (piled[0](), 2) if piled else None


class _View(NamedTuple):
    """A view of an output, made after a replay."""

    tensor: Weak[torch.Tensor]
    graph: WatchedGraph
    replays: int
    """Of the graph, when it was made."""
    memory: Hashable
    place: Frames


def _is_piled(place: Holding, count: int, before: deque[Counter[Holding]]) -> bool:
    """Whether another result was kept after the last replay; of calls that were put off, one after
    each of the last two, since a call may also be added to those that follow every replay.
    ``before``: how many there were when each of the last replays began."""
    *_, earlier, last = 0, 0, *(counts[place] for counts in before)
    return 0 < last < count and (earlier < last or not isinstance(place[2], PutOffCall))


def _memory_of(buffer: Buffer | None, tensor: torch.Tensor) -> Hashable:
    return buffer and buffer.key, tensor.data_ptr(), tuple(tensor.shape)


def _is_result(graph: WatchedGraph, buffer: Buffer) -> bool:
    """A replay of the graph would compute what the buffer holds."""
    if buffer.allocated_in is graph:
        return buffer.last_write is None
    use = graph.external.get(buffer.key)
    if use is None or not use.first_is_write or buffer.allocated_in is not None:
        return False
    # State that the graph overwrites may have a value of its own before.
    written = buffer.last_write is not None and buffer.last_write.time > graph.began
    return not written and not isinstance(use.tensor(), torch.nn.Parameter)


_VIEWS = 4096
"""Views of outputs that are noted at a time."""
_SEARCHES = 64
"""Replays of one graph before which is searched for what holds its outputs."""
_WHOLE_SEARCHES = 8
"""Replays after which all containers are searched; later, after 16, 32, 64, ..."""
_FEW = 4 * _SEARCHES
"""Items of the largest containers that are looked into there: data sets are larger."""


class Abandoned(Detector):
    """Outputs of graphs that are gone: the script captures again, and goes on reading the tensors
    of the first capture, which the replays of the second do not write."""

    phase = "replay"

    def start(self) -> None:
        self._replays = 0
        """Of all graphs, so far."""
        self._read_after: dict[int, int] = {}
        """By key of an output: how many replays there were when it was last read."""
        self._readers: defaultdict[int, set[Frames]] = defaultdict(set)
        """By key of an output: the lines that were the first to read it after a replay."""
        self._unread: dict[WatchedGraph, None] = {}
        """Graphs that were captured where a graph that is gone was: nobody has read a result."""
        self._late: defaultdict[WatchedGraph, dict[Frames, WatchedGraph]] = defaultdict(dict)
        """By such a graph: where an output of the old one is read after its replay."""

    def on_capture_ended(self, event: events.CaptureEnded) -> None:
        if any(_is_in_place_of(event.graph, each) for each in self.script.graphs):
            self._unread[event.graph] = None

    def on_replay_begins(self, event: events.ReplayBegins) -> None:
        for use in event.graph.external.values() if self._unread else ():
            if not use.first_is_write:
                self._note_read(use.buffer, event.graph)

    def on_replay_ended(self, _event: events.ReplayEnded) -> None:
        self._replays += 1

    def _note_read(self, buffer: Buffer, reader: WatchedGraph | None = None) -> None:
        """A line of the script, or a replay, reads a buffer, which may be a result of a graph."""
        for later in list(self._unread):
            if later is reader:
                continue
            use = later.external.get(buffer.key)
            if later.replays and (buffer.allocated_in is later or (use and use.written)):
                del self._unread[later]

    def on_eager_op(self, event: events.EagerOp) -> None:
        for tensor in event.op.read:
            self._look_at(tensor)

    def on_host_read(self, event: events.HostRead) -> None:
        self._look_at(event.tensor)

    def on_host_waited(self, event: events.HostWaited) -> None:
        if event.tensor is not None:
            self._look_at(event.tensor)

    def _look_at(self, tensor: torch.Tensor) -> None:
        buffer = self.script.buffers.find(tensor)
        if buffer is None:
            return
        self._note_read(buffer)
        graph = buffer.allocated_in
        if graph is None or not graph.replays or graph.callable is not None:
            return
        if self._read_after.get(buffer.key) == self._replays:
            return
        self._read_after[buffer.key] = self._replays
        place = self.script.place()
        if place not in self._readers[buffer.key]:
            self._readers[buffer.key].add(place)
        elif graph.state == "dropped":
            for later in self._unread:
                if later.replays and _is_in_place_of(later, graph):
                    self._late[later].setdefault(place, graph)

    def on_script_ended(self, _event: events.ScriptEnded) -> None:
        for later in self._unread:
            for place, graph in self._late.get(later, {}).items():
                self.report(
                    OUTPUT_OF_DROPPED_GRAPH,
                    f"an output of {graph.name} is read again, but that graph is gone; "
                    f"{later.name}, captured in its place, writes other tensors",
                    place,
                    graphs=(graph, later),
                )


def _is_in_place_of(graph: WatchedGraph, earlier: WatchedGraph) -> bool:
    """Whether one line captured both, wherever it was called."""
    return earlier.number < graph.number and earlier.frames[:1] == graph.frames[:1]
