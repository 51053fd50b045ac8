"""One more run of what a graph has captured, compared with the capture, and with a replay."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cgtool.model.capture import Frames
from cgtool.observe.capturing_queries import Queries, watch_capturing_queries
from cgtool.observe.live_objects import LiveObjects
from cgtool.observe.raw_tensors import bytes_of, raw
from cgtool.observe.script.blocks import Region
from cgtool.observe.script.script import ObservedScript
from cgtool.observe.script.state import WatchedGraph
from cgtool.observe.tensors import has_memory, is_emptied, key_of, tensors_in
from cgtool.program.reach import Reachable
from cgtool.recapture.compare import Difference, first_difference
from cgtool.recapture.contained import Stopped, UndoingRecorder, most_ops_after, restoring
from cgtool.recapture.experiment import in_order, minimal
from cgtool.recapture.host_state import HostState, Item, Reading, Values
from cgtool.recapture.iteration import Iteration
from cgtool.recapture.ops import OutsideTensor
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.storages import Layout

_MOST_BYTES = 4 << 30
"""Limit of the memory that a graph writes, which is copied."""


@dataclass
class Captured:
    """A graph whose code can run again."""

    graph: WatchedGraph
    region: Region
    iteration: Iteration
    """Its ops."""
    values: Values
    """Numbers, texts and flags that its code could reach when the capture began, by path."""
    objects: LiveObjects
    runs: int = 0
    right: int = 0
    """In how many of them it was as in the capture."""


@dataclass
class Run:
    """One more run of the captured code."""

    iteration: Iteration
    recorder: UndoingRecorder
    launch: Callable[[], None]
    """Makes its effects on the memory of the device happen."""
    queries: Queries


class Trial:
    """Runs of the code of one graph as a replay begins. What they leave is undone when the trial is
    exited."""

    def __init__(self, script: ObservedScript, captured: Captured) -> None:
        self._script, self._captured, self._graph = script, captured, captured.graph
        self._state = HostState(lambda: Reachable(captured.region.roots()))
        self._before = self._state.read()
        self._leaves = captured.objects.alive(captured.graph)
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Trial:
        self._undo.callback(self._restore_gradients)
        self._undo.callback(self._captured.region.restore_after())
        self._undo.callback(self._state.restore, self._before)
        return self

    def __exit__(self, *_raised: object) -> None:
        self._undo.close()

    def _restore_gradients(self) -> None:
        for leaf, gradient in self._leaves:
            leaf.grad = gradient

    def run(self, reading: Reading | None = None, *, is_capturing: bool = True) -> Run:
        """Run the code with what Python holds now, or with ``reading``. Raises what it raises."""
        self._state.restore(reading or self._before)
        for leaf, _ in self._leaves:
            leaf.grad = None  # what a graph allocates, each replay writes anew
        recorder = UndoingRecorder({}, self._script.annotations, set())
        recorder.most_ops = most_ops_after(self._captured.iteration)
        queries: list[Frames] = []

        def run_watched() -> None:
            # On the simulated device, PyTorch's own code gets its answer from the device.
            with watch_capturing_queries(is_capturing) as asked:
                self._captured.region.run()
            queries.extend(asked)

        with self._captured.objects.modes(), Patches() as patches:
            patches.set(torch.cuda.CUDAGraph, "replay", _stop_at_replay)
            launch = self._script.device.run_again(run_watched, recorder)
        iteration = Iteration(recorder.ops, recorder.record, recorder.storages, recorder.filled)
        return Run(iteration, recorder, launch, queries)

    def difference(self, again: Run) -> Difference | None:
        """The first op in which a run and the capture differ."""
        graph = self._graph
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

        captured = self._captured.iteration
        return first_difference(captured, again.iteration, by_name=True, is_meant=is_fed)

    def differing(self, again: Run, *, exactly: bool) -> list[str]:
        """The names of what has other values after the run than after a replay from the same
        memory. ``exactly``: to the last bit, instead of within rounding."""
        region = self._captured.region
        written = {key_of(tensor): tensor for tensor in again.recorder.overwritten}
        storages = {**_written_by(self._graph), **written}
        if sum(each.untyped_storage().nbytes() for each in storages.values()) > _MOST_BYTES:
            raise Stopped("memory")
        memory = _Memory([*storages.values()], self._script)
        before = memory.read()
        with memory.restored(before):
            again.launch()
            after = memory.read()
            assigned = dict(region.assigned())
            made = _made(assigned)
            outputs = {name: _copies(value) for name, value in assigned.items()}
            results = _copies(made)
            gradients = [_copies(leaf.grad) for leaf, _ in self._leaves]
        with memory.restored(before):
            # Memory of the host that the replay copies from is as the script has left it.
            self._state.restore(self._before)
            self._script.replay_unseen(self._graph)
            replayed = memory.read()
            kept = {name: _copies(value) for name, value in region.outputs()}
            captured = _copies(_of_capture(self._captured.iteration, again.iteration, made))
            static = [_copies(gradient) for _, gradient in self._leaves]

        def differ(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> bool:
            pairs = zip(ours, theirs, strict=False)
            is_comparable = len(ours) == len(theirs)
            return is_comparable and not all(_equal(*pair, exactly=exactly) for pair in pairs)

        state = {key for key, use in self._graph.external.items() if use.written} | written.keys()
        names = [f"`{name}`" for name in outputs if differ(outputs[name], kept.get(name, ()))]
        if any(
            key in state and not _equal_bytes(tensor, ours, theirs, exactly=exactly)
            for (key, tensor), ours, theirs in zip(
                storages.items(), after.values, replayed.values, strict=True
            )
        ):
            names.append("memory that it writes")
        if not names and differ(results, captured):
            names.append("the results of its ops")
        if any(map(differ, gradients, static)):
            names.append("its gradients")
        return names

    def causes(self, difference: Difference) -> tuple[Item, ...]:
        """The host state that is to be set back for a difference to vanish."""
        items = in_order(self._state.changed_since(self._captured.values, self._before))

        def vanishes(chosen: Sequence[Item]) -> bool:
            reading = self._before.with_numbers(chosen, [item.before for item in chosen])
            try:
                other = self.difference(self.run(reading))
            except Exception:
                return False
            return other is None or other.at > difference.at

        return tuple(minimal(items, vanishes)) if items and vanishes(items) else ()


def _stop_at_replay(_graph: Any) -> None:
    """Code that replays a graph by now does not do what was captured."""
    raise Stopped("replay")


def _written_by(graph: WatchedGraph) -> dict[int | None, torch.Tensor]:
    """A tensor in each storage that a graph writes, or allocates and somebody holds."""
    found: dict[int | None, torch.Tensor] = {}
    for key, use in graph.external.items():
        tensor = use.buffer.ref.tensor(use.layout) if use.written else None
        if tensor is not None and has_memory(tensor) and not is_emptied(tensor):
            found[key] = tensor
    for key, buffer in graph.allocated.items():
        tensor = buffer.ref.tensor(Layout(torch.uint8, (buffer.bytes,), (1,), 0))
        if tensor is not None and buffer.bytes:
            found[key] = tensor
    return found


def _made(assigned: dict[str, Any]) -> list[torch.Tensor]:
    """Tensors with memory among what code has assigned."""
    return [each for each in tensors_in([*assigned.values()]) if has_memory(each)]


def _of_capture(
    captured: Iteration, again: Iteration, made: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """The tensors that the same ops have made in the capture, if all of them are alive."""
    before, after = ([op for op in run.ops if not op.host] for run in (captured, again))
    if [op.call.name for op in before] != [op.call.name for op in after]:
        return []
    maker = {key: (at, number) for at, op in enumerate(after) for number, key in enumerate(op.made)}
    found: list[torch.Tensor] = []
    for tensor in made:
        at, number = maker.get(key_of(tensor) or 0, (-1, 0))
        if at < 0 or number >= len(before[at].made):
            return []
        other = captured.storages[before[at].made[number]].tensor(Layout.of(tensor))
        if other is None:
            return []
        found.append(other)
    return found


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

    @contextlib.contextmanager
    def restored(self, values: _Values) -> Iterator[None]:
        """Restores these tensors after whatever runs inside."""
        try:
            yield
        finally:
            with restoring(), raw():
                for tensor, value in zip(self.tensors, values.values, strict=True):
                    tensor.untyped_storage().copy_(value)
                self.script.device.set_generator_state(values.generator)
                # Other streams of the script's may read it next.
                self.script.device.synchronize()


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
