"""Captured code that is called again, and compared with a replay from the same state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from msgspec import Struct

from cgtool.analysis.reports import explain_findings, is_hazard
from cgtool.detectors.capturing_paths import (
    CODE_BRANCHES_ON_CAPTURING,
    Queries,
    watch_capturing_queries,
)
from cgtool.detectors.frozen_values import CONTROL_FLOW_FROZEN, PYTHON_SCALAR_FROZEN
from cgtool.detectors.reporting import FindingLog
from cgtool.devices.simulated.graph import SimulatedGraph, Step
from cgtool.devices.simulated.op_differences import (
    Difference,
    Texts,
    by_key,
    equal,
    filled_on_the_host,
    first_difference,
    functions_of,
    names_of,
    number_at,
    signature,
)
from cgtool.devices.simulated.script_device import ScriptDevice
from cgtool.model.finding import ERROR, Finding
from cgtool.observe.annotations import Annotations
from cgtool.observe.effects import effect_of, overwrites, written_by
from cgtool.observe.ops import OpCall, OpRecorder
from cgtool.observe.script.blocks import Outputs
from cgtool.observe.script.names import Holders, paths_to
from cgtool.observe.script.script import ObservedScript
from cgtool.observe.script.state import WatchedGraph
from cgtool.observe.tensors import (
    DEVICE,
    has_memory,
    is_emptied,
    key_of,
    place_of,
    tensors_in,
)
from cgtool.torch_compat.dispatch_keys import Args, Kwargs
from cgtool.torch_compat.op_key import unobserved
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import CAPTURING_QUERIES, no_torch_function

_MOST_BYTES = 2 << 30
"""Of what a graph writes, which is copied twice."""
_MOST_ON_HOST = 1 << 20
"""Items of a tensor on the host that is compared."""
_MEMORY = "memory that it writes"
_RESULTS = "the results of its ops"
_UNINITIALIZED = "aten::empty", "aten::new_empty"


class Code(Protocol):
    """What was captured, to be called again."""

    function: str
    """The qualified name of the function that has the statements; "" where they are a function."""

    def outputs(self) -> Outputs:
        """Those of the capture, which replays overwrite."""

    def run(self) -> None: ...

    def assigned(self) -> Outputs:
        """Those of ``run``."""


class Answer(Struct):
    """What a comparison has found."""

    finding: Finding
    key: int | None
    """Of a tensor that the graph takes, where the call takes another one."""
    is_number: bool
    """An op gets another number of Python."""
    ops: bytes
    """What the call has run (``signature``)."""


@dataclass
class _Memory:
    """What a graph writes, and the state of generators."""

    storages: dict[int, torch.Tensor]
    """By key: its memory."""
    generators: list[torch.Generator]
    bytes_of: dict[int, torch.UntypedStorage] = field(default_factory=dict)
    states: list[torch.Tensor] = field(default_factory=list)

    def save(self) -> None:
        self.bytes_of = {key: each.untyped_storage().clone() for key, each in self._items()}
        self.states = [each.get_state() for each in self.generators]

    def restore(self) -> None:
        for key, tensor in self._items():
            tensor.untyped_storage().copy_(self.bytes_of[key])
        for generator, state in zip(self.generators, self.states, strict=True):
            generator.set_state(state)

    def _items(self) -> Iterator[tuple[int, torch.Tensor]]:
        return iter(self.storages.items())


class _Replayed(NamedTuple):
    """What a replay has left."""

    storages: dict[int, torch.Tensor]
    """By key: what it has written."""
    outputs: dict[str, list[torch.Tensor]]
    """By name."""
    results: list[torch.Tensor]
    """Of the ops whose results no op takes."""
    gradients: list[tuple[torch.Tensor, torch.Tensor]]
    """Leaves, and what their gradients were."""


class _Again(OpRecorder):
    """Notes the ops of the second call, as those of the graph are noted."""

    def __init__(
        self,
        device: ScriptDevice,
        annotations: Annotations,
        known: set[int],
        on_host: dict[int, torch.Tensor],
    ) -> None:
        """``on_host``: what the graph copies from the host, as it is before the call, by key."""
        super().__init__({}, annotations)
        self._device = device
        self.steps: list[Step] = []
        self.written: set[int] = set()
        self.read_first: set[int] = set()
        """What is read, or changed in part, before it is overwritten."""
        self.before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """What is written that the graph has not: its memory, and a copy of it before."""
        self.filled: dict[int, int] = {}
        """By key of such memory, which the call has filled with something else: the number of the
        op that copies from it."""
        self.queries: Queries = ()
        self._on_host = on_host
        self._known = known
        self._made: set[int] = set()

    def execute(self, call: OpCall, func: Any, args: Args, kwargs: Kwargs) -> Any:
        if self._device.on_host:
            return self.run(func, args, kwargs)
        given, written = (
            set(dict(by_key((args, kwargs)))),
            dict(by_key([*written_by(func, args, kwargs)])),
        )
        for key in written.keys() - self._known - self._made - self.before.keys():
            with unobserved():
                self.before[key] = (whole := _whole(written[key])), _copied(whole)
        for key, tensor in by_key((args, kwargs)):
            before = self._on_host.get(key)
            if before is not None and key not in self.filled:
                with unobserved():
                    if not equal(_whole(tensor), before):
                        self.filled[key] = len(self.steps)
        if not effect_of(func).view:
            overwritten = written.keys() if overwrites(call.name) else set[int]()
            self.read_first |= given - overwritten - self.written - self._made
            self.written |= written.keys()
        result = self.run(func, args, kwargs)
        results = [*tensors_in(result)]
        self._made |= dict(by_key(results)).keys() - given
        if not (effect_of(func).view or call.name.startswith("profiler::")):
            self.steps.append(Step(func, args, kwargs, results, call))
        return result


class CallsAgain:
    """A replay, and a call of the code that was captured, from the same state."""

    def __init__(self, script: ObservedScript, device: ScriptDevice, graph: WatchedGraph) -> None:
        self._script, self._device, self._graph = script, device, graph
        cuda_graph: Any = graph.graph()
        simulated: SimulatedGraph = cuda_graph._graph
        self._simulated = simulated
        self.is_meant = False
        """The call gives other values than the replay, and is not to be reported: other graphs feed
        this one, or are there for such a call."""
        with unobserved(), no_torch_function():
            storages = {
                key: _whole(tensor)
                for step in simulated.steps
                for tensor in (
                    *tensors_in(step.results),
                    *written_by(step.func, step.args, step.kwargs),
                )
                if (key := key_of(tensor)) is not None and not is_emptied(tensor)
            }
        self._memory = _Memory(storages, [torch.default_generator, *cuda_graph.registered])

    @property
    def is_small(self) -> bool:
        """Whether what the graph writes may be copied."""
        storages = self._memory.storages.values()
        return sum(each.untyped_storage().nbytes() for each in storages) <= _MOST_BYTES

    def replay(self) -> None:
        with unobserved(), no_torch_function():
            self._simulated.replay()

    def compared(self, code: Code, texts: Texts, leaves: Sequence[torch.Tensor]) -> Answer | None:
        """What differs after them, if something does, and why, if that shows. ``leaves``: those
        that had no gradient before the capture."""
        memory = self._memory
        with unobserved():
            memory.save()
        self.replay()
        with unobserved():
            replayed = _Replayed(
                {key: _copied(each) for key, each in memory.storages.items()},
                {name: [*map(_copied, tensors_in(value))] for name, value in code.outputs()},
                [*map(_copied, _results(self._simulated.steps))],
                [
                    (leaf, _copied(leaf.grad))
                    for leaf in leaves
                    if leaf.grad is not None and key_of(leaf.grad) in self._graph.allocated
                ],
            )
        again = self._call_from_before(code, leaves)
        names = self._differing(code, again, replayed)
        if names:
            return self._finding(code, texts, again, names)
        # A learning rate that falls slowly differs by less than the order of a sum may.
        names = self._differing(code, again, replayed, exactly=True)
        slight = self._finding(code, texts, again, names) if names else None
        if slight is not None and slight.is_number:
            return slight
        self.is_meant = False
        if not again.queries:
            return None
        with unobserved():
            for tensor, before in again.before.values():
                tensor.copy_(before)
        eager = self._call_from_before(code, leaves, is_capturing=False)
        names = self._differing(code, eager, replayed)
        finding = Finding(
            CODE_BRANCHES_ON_CAPTURING,
            "this line asks whether a stream is capturing; with the other answer, the code gives "
            "other values than a replay",
            again.queries[0],
            phase="capture",
            evidence=(f"other values: {', '.join(names[:3])}",),
        )
        return Answer(finding, None, False, signature(eager.steps)) if names else None

    def _call_from_before(
        self, code: Code, leaves: Sequence[torch.Tensor], *, is_capturing: bool = True
    ) -> _Again:
        with unobserved():
            self._memory.restore()
        for leaf in leaves:
            leaf.grad = None  # what a graph allocates, each replay writes anew
        return self._call(code, is_capturing)

    def _differing(
        self, code: Code, again: _Again, replayed: _Replayed, *, exactly: bool = False
    ) -> list[str]:
        """The names of what has other values after a call than after a replay."""
        storages, outputs, captured, gradients = replayed
        pairs: list[tuple[str | int, torch.Tensor, torch.Tensor]] = [
            *((key, self._memory.storages[key], storages[key])
              for key in self._state(again) & storages.keys()),
            *((key, *each) for key, each in again.before.items()
              if key in again.read_first or key in self._graph.external),
            *(("its gradients", leaf.grad, gradient)
              for leaf, gradient in gradients if leaf.grad is not None),
        ]  # fmt: skip
        for name, value in code.assigned():
            tensors = [*tensors_in(value)]
            if len(tensors) == len(outputs.get(name, ())):
                pairs += [(f"`{name}`", *each) for each in zip(tensors, outputs[name], strict=True)]
        results = _results(again.steps)
        is_same = names_of(again.steps) == names_of(self._simulated.steps)
        if len(results) == len(captured) and (is_same or not code.function):
            pairs += [(_RESULTS, *each) for each in zip(results, captured, strict=True)]
        with unobserved(), no_torch_function():
            differing = [
                what for what, ours, theirs in pairs if not equal(ours, theirs, exactly=exactly)
            ]
        names = dict.fromkeys(self._named(differing))
        if len(names) > 1:
            names.pop(_RESULTS, None)
        return [*names]

    def _named(self, differing: Iterable[str | int]) -> Iterator[str]:
        """``differing``: what differs, or the key of memory that does."""
        frame, holders = self._script.frame(), Holders()
        for what in differing:
            paths = paths_to(what, frame, holders) if isinstance(what, int) else []
            name = f"`{paths[0].text}`" if paths else _MEMORY
            yield name if isinstance(what, int) else what

    def _state(self, again: _Again) -> set[int]:
        """What one call leaves for the next, or as its result: memory that either call reads before
        it overwrites it, or that both write. All other memory is only worked in."""
        external = self._graph.external
        read = {key for key, use in external.items() if not use.first_is_write}
        written = {key for key, use in external.items() if use.written}
        return (
            (again.written & (read | written))
            | (written & again.read_first)
            | (again.read_first & self._graph.allocated.keys())
        )

    def _is_of_another_graph(self, again: _Again, texts: Texts) -> bool:
        """Whether a graph was captured with what Python holds now: the buffers of the other half of
        a step, another phase."""
        others: list[Any] = [
            each.graph() for each in self._script.replayable() if each is not self._graph
        ]
        return any(
            functions_of(each._graph.steps) == functions_of(again.steps)
            and first_difference(each._graph.steps, again.steps, texts, lambda _key: False) is None
            for each in others
            if each is not None and each._graph is not None
        )

    def _is_chosen(self, difference: Difference) -> bool:
        """Whether graphs that the same line captures differ in the same: the program chooses
        between them."""
        at, kind = difference.at, difference.kind
        name, number = number_at(self._simulated.steps, at, difference.leaf)
        others = [
            number_at(steps_of(each), at, difference.leaf)
            for each in self._script.replayable()
            if each.is_alternative_to(self._graph)
        ]
        if kind == PYTHON_SCALAR_FROZEN:
            return any(each == name and other != number for each, other in others)
        return kind == CONTROL_FLOW_FROZEN and any(each != name for each, _ in others)

    def _is_meant(self, key: int | None) -> bool:
        last = self._graph.last_replay
        since = self._graph.began if last is None else last.time
        return is_fed(self._graph, key, since)

    def _call(self, code: Code, is_capturing: bool) -> _Again:
        with unobserved():
            on_host = {
                key: _copied(_whole(tensor))
                for step in self._simulated.steps
                for key, tensor in by_key((step.args, step.kwargs))
                if place_of(tensor) != DEVICE and tensor.numel() <= _MOST_ON_HOST
                if key not in self._memory.storages
            }
        known = {*self._memory.storages}
        again = _Again(self._device, self._script.annotations, known, on_host)
        self._device.recorder = again
        with Patches() as patches:
            for point in CAPTURING_QUERIES:
                patches.set(*point, lambda: True)
            with watch_capturing_queries(is_capturing) as queries:
                code.run()
        self._device.recorder = None
        again.queries = queries
        return again

    def _finding(
        self, code: Code, texts: Texts, again: _Again, differing: list[str]
    ) -> Answer | None:
        difference = first_difference(self._simulated.steps, again.steps, texts, self._is_meant)
        if difference is None and again.filled:
            difference = filled_on_the_host(
                self._simulated.steps, again.steps, min(again.filled.values()), texts
            )
        if difference is None:
            # What no op shows: the state of a custom op, or what another graph makes.
            self.is_meant = True
            return None
        if self._is_of_another_graph(again, texts) or self._is_chosen(difference):
            self.is_meant = True
            return None
        frames = difference.frames(code.function, self._graph.frames, len(self._script.chain()))
        finding = Finding(
            difference.kind,
            difference.reason,
            frames or self._graph.frames,
            phase="replay",
            fix=texts.fixes.get(difference.kind),
            evidence=(f"{texts.compared}: {', '.join(differing[:3])}",),
        )
        return Answer(finding, difference.key, difference.is_number, signature(again.steps))


def is_fed(graph: WatchedGraph, key: int | None, since: int) -> bool:
    """Whether another graph makes what a graph reads, or the script has written it ``since`` then:
    the next link of a chain may have the name of the one before (``self.h = layer(self.h)``)."""
    use = None if key is None else graph.external.get(key)
    if use is None:
        return False
    write, maker = use.buffer.last_write, use.buffer.allocated_in
    is_written = write is not None and write.graph is None and write.time > since
    return is_written or (maker is not None and maker is not graph)


def add_what_is_new(log: FindingLog, found: Iterable[Finding]) -> None:
    """Report what is found by calls if there is no other error, nor a warning at its line, nor of a
    branch in its function."""
    known = [each for each in explain_findings(log) if is_hazard(each)]
    if any(each.severity == ERROR for each in known):
        return
    lines = {each.frames[:1] for each in known}
    branches = [_function_of(each) for each in known if each.code == CONTROL_FLOW_FROZEN]
    for finding in found:
        is_branch = finding.code == CONTROL_FLOW_FROZEN and _function_of(finding) in branches
        if not is_branch and finding.frames[:1] not in lines:
            log.add(finding)


def _function_of(finding: Finding) -> list[tuple[str, str]]:
    return [(frame.file, frame.function) for frame in finding.frames[:1]]


def _results(steps: list[Step]) -> list[torch.Tensor]:
    """What ops make and no later op takes; uninitialized memory is nothing."""
    taken: set[int] = set()
    results: list[torch.Tensor] = []
    for step in reversed(steps):
        if step.call is not None and not step.call.name.startswith(_UNINITIALIZED):
            results += [each for key, each in by_key(step.results) if key not in taken]
        taken |= dict(by_key((step.args, step.kwargs, step.results))).keys()
    return results


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of the memory that a tensor is in: a call may write another part of it than a replay."""
    if is_emptied(tensor) or not has_memory(tensor):
        return tensor.detach()
    items = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.detach().as_strided((items,), (1,), 0)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


def steps_of(graph: WatchedGraph) -> list[Step]:
    """What a captured graph runs."""
    cuda_graph: Any = graph.graph()
    return [] if cuda_graph is None else list(cuda_graph._graph.steps)
