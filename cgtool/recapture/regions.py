"""What a script captures, run again as its replays begin.

A replay repeats what was captured, where eager code would run with what Python holds by then. So
the captured statements run once more as some replays of a graph begin, and nothing of that stays.
If they record other ops than the capture, or other numbers or tensors, the results decide: what
they compute is compared with what a replay computes from the same memory. Then the host state that
has changed since the capture is set back until it is known which of it matters.
"""

from __future__ import annotations

import contextlib
import copy
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from cgtool.model import clock
from cgtool.model.capture import Frames
from cgtool.observe.capturing_queries import Queries, watch_capturing_queries
from cgtool.observe.frames import package_part
from cgtool.observe.live_objects import LiveObjects, at_end_of
from cgtool.observe.raw_tensors import bytes_of, raw
from cgtool.observe.script import events
from cgtool.observe.script.blocks import Block, Region, block_of, region_of
from cgtool.observe.script.script import Device, ObservedScript
from cgtool.observe.script.state import WatchedGraph
from cgtool.observe.tensors import has_memory, is_emptied, key_of, tensors_in
from cgtool.program.reach import Reachable
from cgtool.recapture.compare import Difference, first_difference
from cgtool.recapture.contained import Stopped, UndoingRecorder, contained
from cgtool.recapture.experiment import in_order, minimal
from cgtool.recapture.host_state import HostState, Item, Reading, Values, plain_values
from cgtool.recapture.iteration import Iteration
from cgtool.recapture.ops import KeptOpRecorder, OutsideTensor
from cgtool.torch_compat.storages import Layout

strict = False
"""Whether a failure of cgtool's own code is raised, as in tests."""
_MOST_GRAPHS = 32
_MOST_OF_LINE = 4
"""Graphs that one line captures."""
_MOST_RUNS = 12
"""Of the code of one graph."""
_SECONDS_OF_RUN = 5.0
_LEAST_SECONDS = 5.0
"""For all runs of a script; as much time as the script itself has taken, if that is more."""
_MOST_BYTES = 4 << 30
"""Of what a graph writes, which is copied."""
_DUE = frozenset((0, 1, 2, 4, 8, 16, 64, 256, 1024))
"""By how many replays were before: the replays at which the code runs again."""


@dataclass
class Rerun:
    """What a graph's code does differently as a replay begins."""

    graph: WatchedGraph
    difference: Difference
    second: Iteration
    items: tuple[Item, ...]
    """The host state that was shown to make the difference."""
    differing: tuple[str, ...]
    """Names of what has other values than after a replay."""
    place: Frames
    """Where the replay begins."""
    at_first: bool
    """It is the first replay of the graph."""


@dataclass
class Asked:
    """Code that gives other values if it is not being captured."""

    graph: WatchedGraph
    query: Frames
    differing: tuple[str, ...]


@dataclass
class _Known:
    """A graph whose code can run again."""

    region: Region
    captured: Iteration
    values: Values
    """Numbers, texts and flags that its code could reach when the capture began, by path."""
    objects: LiveObjects
    runs: int = 0
    right: int = 0
    """In how many of them it was as in the capture."""


@dataclass
class _Again:
    iteration: Iteration
    recorder: UndoingRecorder
    launch: Callable[[], None]
    queries: Queries


class Regions:
    """Runs what a script captures again as its replays begin."""

    def __init__(self, script: ObservedScript, device: Device) -> None:
        self._script, self._device = script, device
        self._block: Block | None = None
        self._values: Values = {}
        self._ops: KeptOpRecorder | None = None
        """These of the capture in progress."""
        self._known: dict[WatchedGraph, _Known] = {}
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
        region = region_of(block, graph.callable)
        if region is None or ops is None:
            return
        for other in self._known.values():
            other.region.note_reused(region)
        captured = Iteration(ops.ops, graph.record, ops.storages, ops.filled)
        self._known[graph] = _Known(region, captured, self._values, at_end_of(graph))

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
            return
        known.runs += 1
        try:
            with self._unseen(), contained(min(left, _SECONDS_OF_RUN)):
                self._look(graph, known)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if strict and _is_ours(error):
                raise
            # It cannot run again, for which the program may have many reasons.
            if known.runs > 2 and not known.right:
                self._drop(graph)
        self._spent += clock.monotonic() - now

    @contextlib.contextmanager
    def _unseen(self) -> Iterator[None]:
        """What runs inside is no part of the script: nothing is published of it."""
        script = self._script
        order, place = copy.deepcopy(script.order), script.clock
        script.closed = True
        try:
            yield
        finally:
            script.closed = False
            script.order, script.clock = order, place

    def _look(self, graph: WatchedGraph, known: _Known) -> None:
        state = HostState(lambda: Reachable(known.region.roots()))
        before = state.read()
        leaves = known.objects.alive(graph)
        restore_names = known.region.restore_after()
        run = partial(self._run, known, state, before, leaves)
        try:
            again = run()
            difference = self._difference(graph, known.captured, again.iteration)
            if difference is None:
                known.right += 1
                self._right |= {graph} & self._found.keys()
                self._look_at_queries(graph, known, again, run, leaves)
                return
            if graph in self._found or self._is_for_another(graph, again, difference):
                return
            exactly = difference.kind == "number"
            differing = self._differing(graph, known, again, leaves, exactly=exactly)
            if differing:
                items = self._causes(graph, known, state, before, run, difference)
                self._found[graph] = Rerun(
                    graph,
                    difference,
                    again.iteration,
                    items,
                    tuple(differing),
                    self._script.place(),
                    at_first=graph.replays == 0,
                )
        finally:
            state.restore(before)
            restore_names()
            for leaf, gradient in leaves:
                leaf.grad = gradient

    def _run(
        self,
        known: _Known,
        state: HostState,
        before: Reading,
        leaves: _Leaves,
        *,
        reading: Reading | None = None,
        is_capturing: bool = True,
    ) -> _Again:
        state.restore(reading or before)
        for leaf, _ in leaves:
            leaf.grad = None  # what a graph allocates, each replay writes anew
        recorder = UndoingRecorder({}, self._script.annotations, set())
        with known.objects.modes(), watch_capturing_queries(is_capturing) as queries:
            launch = self._device.run_again(known.region.run, recorder)
        iteration = Iteration(recorder.ops, recorder.record, recorder.storages, recorder.filled)
        return _Again(iteration, recorder, launch, queries)

    def _difference(
        self, graph: WatchedGraph, captured: Iteration, again: Iteration
    ) -> Difference | None:
        last = graph.last_replay
        since = graph.began if last is None else last.time

        def is_fed(tensor: OutsideTensor) -> bool:
            """Another graph makes what a graph reads, or the script has written it since: the next
            link of a chain may have the name of the one before (``self.h = layer(self.h)``)."""
            use = graph.external.get(tensor.storage)
            if use is None:
                return False
            write, maker = use.buffer.last_write, use.buffer.allocated_in
            is_written = write is not None and write.graph is None and write.time > since
            return is_written or (maker is not None and maker is not graph)

        return first_difference(captured, again, by_name=True, is_meant=is_fed)

    def _is_for_another(self, graph: WatchedGraph, again: _Again, difference: Difference) -> bool:
        """Whether another graph was captured with what Python holds now (the other half of a step,
        another phase), or graphs of the same line differ in the same: the program chooses."""
        if difference.kind == "tensor" and graph.replays == 0:
            # The script may copy the results of each replay to where the graph reads.
            return True
        for other, known in self._known.items():
            if other is graph or not other.replayable:
                continue
            if first_difference(known.captured, again.iteration, by_name=True) is None:
                return True
            between = first_difference(self._known[graph].captured, known.captured, by_name=True)
            if between is None or not other.is_alternative_to(graph):
                continue
            if (between.at, between.kind) == (difference.at, difference.kind):
                return True
        return False

    # --- results

    def _differing(
        self,
        graph: WatchedGraph,
        known: _Known,
        again: _Again,
        leaves: _Leaves,
        *,
        exactly: bool,
    ) -> list[str]:
        """The names of what has other values after the code has run than after a replay."""
        written = {key_of(tensor): tensor for tensor in again.recorder.overwritten}
        storages = {**self._written_by(graph), **written}
        if sum(each.untyped_storage().nbytes() for each in storages.values()) > _MOST_BYTES:
            raise Stopped("memory")
        memory = _Memory([*storages.values()], self._script)
        before = memory.read()
        again.launch()
        after = memory.read()
        assigned = dict(known.region.assigned())
        outputs = {name: _copies(value) for name, value in assigned.items()}
        gradients = [_copies(leaf.grad) for leaf, _ in leaves]
        memory.write(before)
        self._script.replay_unseen(graph)
        replayed = memory.read()
        kept = {name: _copies(value) for name, value in known.region.outputs()}
        by_op = _copies(_captured(known.captured, again.iteration, assigned))
        static = [_copies(gradient) for _, gradient in leaves]
        memory.write(before)
        state = {key for key, use in graph.external.items() if use.written} | written.keys()
        differing = [
            key
            for key, ours, theirs in zip(storages, after.values, replayed.values, strict=True)
            if key in state and not _equal_bytes(storages[key], ours, theirs, exactly=exactly)
        ]
        names = ["memory that it writes"] * bool(differing)
        for name, tensors in outputs.items():
            others = kept.get(name, ())
            if len(tensors) == len(others) and not all(
                _equal(*pair, exactly=exactly) for pair in zip(tensors, others, strict=True)
            ):
                names.append(f"`{name}`")
        made = _made(assigned)
        if not names and len(by_op) == len(made):
            pairs = zip(_copies(made), by_op, strict=True)
            if not all(_equal(*pair, exactly=exactly) for pair in pairs):
                names.append("the results of its ops")
        for ours, theirs in zip(gradients, static, strict=True):
            if ours and theirs and not _equal(ours[0], theirs[0], exactly=exactly):
                return [*names, "its gradients"]
        return names

    @staticmethod
    def _written_by(graph: WatchedGraph) -> dict[int | None, torch.Tensor]:
        """A tensor in each storage that a graph writes, or allocates and somebody holds."""
        found: dict[int | None, torch.Tensor] = {}
        for key, use in graph.external.items():
            tensor = use.tensor() if use.written else None
            if use.written and tensor is None:
                tensor = use.buffer.ref.tensor(use.layout)
            if tensor is not None and has_memory(tensor) and not is_emptied(tensor):
                found[key] = tensor
        for key, buffer in graph.allocated.items():
            if not buffer.ref.expired() and buffer.bytes:
                tensor = buffer.ref.tensor(Layout(torch.uint8, (buffer.bytes,), (1,), 0))
                if tensor is not None:
                    found[key] = tensor
        return found

    def _look_at_queries(
        self,
        graph: WatchedGraph,
        known: _Known,
        again: _Again,
        run: Callable[..., _Again],
        leaves: _Leaves,
    ) -> None:
        """Code that asks whether it is being captured runs once with the other answer."""
        if not again.queries or graph in self._asked or graph.replays == 0:
            return
        other = run(is_capturing=False)
        if self._difference(graph, known.captured, other.iteration) is not None:
            differing = self._differing(graph, known, other, leaves, exactly=False)
            if differing:
                self._asked[graph] = Asked(graph, again.queries[0], tuple(differing))

    # --- causes

    def _causes(
        self,
        graph: WatchedGraph,
        known: _Known,
        state: HostState,
        before: Reading,
        run: Callable[..., _Again],
        difference: Difference,
    ) -> tuple[Item, ...]:
        """The host state that is to be set back for the difference to vanish."""
        items = in_order(state.changed_since(known.values, before))

        def vanishes(chosen: Sequence[Item]) -> bool:
            reading = before.with_numbers(chosen, [item.before for item in chosen])
            try:
                again = run(reading=reading)
            except Exception:
                return False
            other = self._difference(graph, known.captured, again.iteration)
            return other is None or other.at > difference.at

        if not items or not vanishes(items):
            return ()
        return tuple(minimal(items, vanishes))

    # --- the end

    def found(self) -> list[Rerun]:
        """What is to be reported when the script has ended. Graphs that the same line captures may
        be meant for different states: one of them is reported if none differed at its first
        replay, and none was right after one had differed."""
        by_place = self._script.graphs_by_place()
        at_first = {graph.frames for graph, rerun in self._found.items() if rerun.at_first}
        right = {graph.frames for graph in self._right}
        places: dict[Frames, Rerun] = {}
        for graph, rerun in self._found.items():
            is_alone = len(by_place[graph.frames]) == 1
            if graph.frames not in right and (is_alone or graph.frames not in at_first):
                places.setdefault(graph.frames, rerun)
        return [*places.values()]

    def asked(self) -> list[Asked]:
        """Code that gives other values if it is not being captured."""
        return [*self._asked.values()]


_Leaves = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""Leaves, and their gradients in the memory of the graph."""


def _made(assigned: dict[str, Any]) -> list[torch.Tensor]:
    """Tensors with memory among what code has assigned."""
    return [each for each in tensors_in([*assigned.values()]) if has_memory(each)]


def _captured(
    captured: Iteration, again: Iteration, assigned: dict[str, Any]
) -> list[torch.Tensor]:
    """What the same ops have made in the capture, if all of that is alive."""
    before, after = ([op for op in run.ops if not op.host] for run in (captured, again))
    if [op.call.name for op in before] != [op.call.name for op in after]:
        return []
    maker = {key: (at, number) for at, op in enumerate(after) for number, key in enumerate(op.made)}
    found: list[torch.Tensor] = []
    for tensor in _made(assigned):
        at, number = maker.get(key_of(tensor) or 0, (-1, 0))
        if at < 0 or number >= len(before[at].made):
            return []
        reference = captured.storages[before[at].made[number]]
        other = reference.tensor(Layout.of(tensor))
        if other is None:
            return []
        found.append(other)
    return found


def _is_ours(error: BaseException) -> bool:
    """Whether cgtool's own code has failed, and not the program, which cannot run again."""
    frames = traceback.extract_tb(error.__traceback__)
    is_last = package_part(frames[-1].filename).startswith("/cgtool/")
    return is_last and not isinstance(error, LookupError | Stopped)


@dataclass
class _Values:
    values: list[torch.UntypedStorage]
    generator: torch.Tensor


@dataclass
class _Memory:
    """Storages, and the generator of the device."""

    tensors: list[torch.Tensor]
    script: ObservedScript

    def read(self) -> _Values:
        with raw():
            self.script.device.synchronize()
            values = [bytes_of(tensor) for tensor in self.tensors]
            return _Values(values, self.script.device.generator_state())

    def write(self, values: _Values) -> None:
        with raw():
            for tensor, value in zip(self.tensors, values.values, strict=True):
                tensor.untyped_storage().copy_(value)
            self.script.device.set_generator_state(values.generator)


def _copies(value: Any) -> list[torch.Tensor]:
    with raw():
        return [tensor.detach().clone() for tensor in tensors_in(value) if not is_emptied(tensor)]


def _equal_bytes(
    like: torch.Tensor,
    first: torch.UntypedStorage,
    second: torch.UntypedStorage,
    *,
    exactly: bool,
) -> bool:
    with raw():
        dtype = like.dtype if like.layout == torch.strided else torch.uint8
        ours, theirs = (
            torch.empty(0, dtype=dtype, device=like.device).set_(storage)
            for storage in (first, second)
        )
        return _equal(ours, theirs, exactly=exactly)


def _equal(first: torch.Tensor, second: torch.Tensor, *, exactly: bool) -> bool:
    """``exactly``: to the last bit, instead of within rounding."""
    with raw():
        if first.shape != second.shape or first.dtype != second.dtype:
            return False
        if first.is_quantized or not (first.is_floating_point() or first.is_complex()):
            return torch.equal(first, second)
        if first.element_size() == 1:
            first, second = first.float(), second.float()
        rtol, atol = (0.0, 0.0) if exactly else (1e-3, 1e-6)
        return torch.allclose(first, second, rtol=rtol, atol=atol, equal_nan=True)
