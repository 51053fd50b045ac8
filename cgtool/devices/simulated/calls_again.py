"""Captured code that is called again, and compared with a replay from the same state."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, NamedTuple, Protocol

import torch
from msgspec import Struct
from msgspec.structs import replace

from cgtool.analysis.reports import explain_findings, is_hazard
from cgtool.detectors.capturing_paths import (
    CODE_BRANCHES_ON_CAPTURING,
    Queries,
    watch_capturing_queries,
)
from cgtool.detectors.compare_iterations import METADATA_ADDRESS_CHANGED, frames_of_branch
from cgtool.detectors.frozen_values import CONTROL_FLOW_FROZEN, PYTHON_SCALAR_FROZEN
from cgtool.detectors.reporting import FindingLog
from cgtool.devices.simulated.graph import SimulatedGraph, Step
from cgtool.devices.simulated.script_device import ScriptDevice
from cgtool.model.capture import Frames
from cgtool.model.finding import ERROR, Finding
from cgtool.model.finding import Code as FindingCode
from cgtool.observe.annotations import Annotations
from cgtool.observe.effects import effect_of, overwrites, written_by
from cgtool.observe.frames import Chain, Site, frame_of, frames_of, line_of
from cgtool.observe.ops import OpCall, OpRecorder
from cgtool.observe.script.blocks import RUNS_AGAIN, Outputs
from cgtool.observe.script.names import Holders, paths_to
from cgtool.observe.script.script import ObservedScript
from cgtool.observe.script.state import WatchedGraph
from cgtool.observe.source import deciding_line
from cgtool.observe.tensors import (
    DEVICE,
    HOST,
    has_memory,
    is_emptied,
    key_of,
    place_of,
    tensors_in,
)
from cgtool.torch_compat.dispatch_keys import Args, Kwargs
from cgtool.torch_compat.op_key import unobserved
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import CAPTURING_QUERIES, no_torch_function, pytree

_MOST_BYTES = 2 << 30
"""Of what a graph writes, which is copied twice."""
_MOST_ON_HOST = 1 << 20
"""Items of a tensor on the host that is compared."""
_FEW = 64
"""Items of a tensor on the host that are looked at."""
_MEMORY = "memory that it writes"
_RESULTS = "the results of its ops"
_UNINITIALIZED = "aten::empty", "aten::new_empty"
_NUMBERS = int, float, complex, bool, str


class Code(Protocol):
    """What was captured, to be called again."""

    function: str
    """The qualified name of the function that has the statements; "" where they are a function."""

    def outputs(self) -> Outputs:
        """Those of the capture, which replays overwrite."""

    def run(self) -> None: ...

    def assigned(self) -> Outputs:
        """Those of ``run``."""


class Texts(NamedTuple):
    """What a finding says of a comparison."""

    compared: str
    """What is found to differ: "a second call gives other values than a second replay"."""
    again: str
    """When the code runs in it: "when the code is called again"."""
    repeated: str
    """What every replay repeats."""
    fixes: Mapping[FindingCode, str]


class Answer(Struct):
    """What a comparison has found."""

    finding: Finding
    key: int | None
    """Of a tensor that the graph takes, where the call takes another one."""
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
            set(dict(_by_key((args, kwargs)))),
            dict(_by_key([*written_by(func, args, kwargs)])),
        )
        for key in written.keys() - self._known - self._made - self.before.keys():
            with unobserved():
                self.before[key] = (whole := _whole(written[key])), _copied(whole)
        for key, tensor in _by_key((args, kwargs)):
            before = self._on_host.get(key)
            if before is not None and key not in self.filled:
                with unobserved():
                    if not _equal(_whole(tensor), before):
                        self.filled[key] = len(self.steps)
        if not effect_of(func).view:
            overwritten = written.keys() if overwrites(call.name) else set[int]()
            self.read_first |= given - overwritten - self.written - self._made
            self.written |= written.keys()
        result = self.run(func, args, kwargs)
        results = [*tensors_in(result)]
        self._made |= dict(_by_key(results)).keys() - given
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
        return Answer(finding, None, signature(eager.steps)) if names else None

    def _call_from_before(
        self, code: Code, leaves: Sequence[torch.Tensor], *, is_capturing: bool = True
    ) -> _Again:
        with unobserved():
            self._memory.restore()
        for leaf in leaves:
            leaf.grad = None  # what a graph allocates, each replay writes anew
        return self._call(code, is_capturing)

    def _differing(self, code: Code, again: _Again, replayed: _Replayed) -> list[str]:
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
        is_same = _names(again.steps) == _names(self._simulated.steps)
        if len(results) == len(captured) and (is_same or not code.function):
            pairs += [(_RESULTS, *each) for each in zip(results, captured, strict=True)]
        with unobserved(), no_torch_function():
            differing = [what for what, ours, theirs in pairs if not _equal(ours, theirs)]
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
            _functions(each._graph.steps) == _functions(again.steps)
            and _first_difference(each._graph.steps, again.steps, texts, lambda _key: False) is None
            for each in others
            if each is not None and each._graph is not None
        )

    def _is_chosen(self, difference: _Difference) -> bool:
        """Whether graphs that the same line captures differ in the same: the program chooses
        between them."""
        at, kind = difference.at, difference.kind
        name, number = _number_at(self._simulated.steps, at, difference.leaf)
        others = [
            _number_at(steps_of(each), at, difference.leaf)
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
                for key, tensor in _by_key((step.args, step.kwargs))
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
        difference = _first_difference(self._simulated.steps, again.steps, texts, self._is_meant)
        if difference is None and again.filled:
            difference = _filled(self._simulated.steps, again, texts)
        if difference is None:
            return None  # what no op shows: the state of a custom op, for example
        if self._is_of_another_graph(again, texts) or self._is_chosen(difference):
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
        return Answer(finding, difference.key, signature(again.steps))


@dataclass
class _Difference:
    """The first op that is not the same in the capture and in the call after it."""

    kind: FindingCode
    reason: str
    captured: OpCall | None
    """None where the captured code has ended."""
    again: OpCall | None
    key: int | None = None
    """Of the tensor that the capture takes, and the call after it does not."""
    at: int = 0
    """The number of the op."""
    leaf: int = 0
    """The number of the argument, of those in lists, too."""

    def frames(self, function: str, captured: Frames, depth: int) -> Frames:
        """Where the program has the op, or what decides whether it runs. ``function``: the one
        whose statements run again; ``captured``: the frames of the capture, of which it is one;
        ``depth``: how many frames call the code again."""
        if function:
            (first, site), (second, site_again) = (
                _inside(self.captured, function),
                _inside(self.again, RUNS_AGAIN),
            )
        else:
            first, site = self._chain(self.captured, len(captured)), None
            second, site_again = self._chain(self.again, depth), None
        is_branch = self.kind == CONTROL_FLOW_FROZEN
        is_end = self.captured is None or self.again is None
        if self.captured is None or (self.again is not None and not is_branch):
            first, site = second, site_again
        inner = (
            frames_of_branch(first, None if is_end else second) if is_branch else frames_of(first)
        )
        if not function:
            return (*inner, *captured)
        if site is None:
            return ()
        line = line_of(site)
        if is_branch and site_again is not None and line_of(site_again) != line:
            decides = deciding_line(site[0], (line, line_of(site_again)))
            line, inner = (decides, ()) if decides else (line, frames_of(first))
        names = [each.function for each in captured]
        outer = captured[names.index(function) + 1 if function in names else len(captured) :]
        return (*inner, replace(frame_of(site), line=line, function=function), *outer)

    @staticmethod
    def _chain(call: OpCall | None, outer: int) -> Chain:
        return () if call is None else call.chain[: len(call.chain) - outer]


def _inside(call: OpCall | None, function: str) -> tuple[Chain, Site | None]:
    """The call chain of an op within a function, and the site in that function."""
    chain = () if call is None else call.chain
    for at in reversed(range(len(chain))):
        if chain[at][0].co_qualname == function:
            return chain[:at], chain[at]
    return (), None


def _by_key(values: Any) -> Iterator[tuple[int, torch.Tensor]]:
    for tensor in tensors_in(values):
        key = key_of(tensor)
        if key is not None:
            yield key, tensor


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
            results += [each for key, each in _by_key(step.results) if key not in taken]
        taken |= dict(_by_key((step.args, step.kwargs, step.results))).keys()
    return results


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of the memory that a tensor is in: a call may write another part of it than a replay."""
    if is_emptied(tensor) or not has_memory(tensor):
        return tensor.detach()
    items = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.detach().as_strided((items,), (1,), 0)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


def has_gradient_of(value: Any, graph: WatchedGraph) -> bool:
    """Whether this is a leaf whose gradient is in the memory of a graph."""
    if not issubclass(type(value), torch.Tensor):
        return False
    try:
        gradient = value.grad if value.is_leaf else None
        return gradient is not None and key_of(gradient) in graph.allocated
    except (RuntimeError, AttributeError):
        return False


def _equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    first, second = first.detach(), second.detach()
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.is_quantized or not (first.is_floating_point() or first.is_complex()):
        return torch.equal(first, second)
    if first.element_size() == 1:
        first, second = first.float(), second.float()
    return torch.allclose(first, second, rtol=1e-3, atol=1e-6, equal_nan=True)


def _first_difference(
    captured: list[Step],
    again: list[Step],
    texts: Texts,
    is_meant: Callable[[int | None], bool],
) -> _Difference | None:
    """``is_meant``: whether a graph is to read a tensor, whatever a call takes, by its key."""
    steps = [step for step in captured if step.call is not None]
    same: dict[int | None, int | None] = {}
    same_memory: dict[int, int] = {}
    for at, first in enumerate(steps):
        second = again[at] if at < len(again) else None
        assert first.call is not None
        if second is None or second.call is None or second.call.name != first.call.name:
            after = None if second is None else second.call
            reason = _of_first_call(first.call, second, texts)
            return _Difference(CONTROL_FLOW_FROZEN, reason, first.call, after, at=at)
        name, given, given_again = first.call.name, _leaves(first), _leaves(second)
        if [*map(_is_tensor, given)] != [*map(_is_tensor, given_again)]:
            count, now = sum(map(_is_tensor, given)), sum(map(_is_tensor, given_again))
            return _Difference(
                CONTROL_FLOW_FROZEN,
                f"`{name}` gets another number of tensors {texts.again}, {now} where "
                f"the capture had {count}; "
                "every replay uses those of the capture"
                if count != now
                else f"`{name}` gets other arguments {texts.again}; every replay uses those of the "
                "capture",
                first.call,
                second.call,
                at=at,
            )
        for leaf, (before, after) in enumerate(zip(given, given_again, strict=True)):
            if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
                if place_of(before) == place_of(after) == HOST:
                    if _equal(before, after):
                        continue
                    return _Difference(
                        PYTHON_SCALAR_FROZEN,
                        f"`{name}` gets other numbers from the host {texts.again}; every replay "
                        "uses those of the capture",
                        first.call,
                        second.call,
                        at=at,
                        leaf=leaf,
                    )
                expected = same.get(key_of(before), key_of(before))
                address = _address(before)
                # Another tensor may have a result's memory, as by DLPack.
                is_same = bool(address) and same_memory.get(address) == _address(after)
                is_same |= key_of(after) == expected
                if is_same and _part_of(before) != _part_of(after):
                    return _Difference(
                        PYTHON_SCALAR_FROZEN,
                        f"`{name}` gets {_part_in_words(after, before)} of a tensor {texts.again}, "
                        f"where the capture had {_part_in_words(before, after)}; every replay uses "
                        "that of the capture",
                        first.call,
                        second.call,
                        at=at,
                        leaf=leaf,
                    )
                if is_same:
                    continue
                if is_meant(key_of(before)):
                    same[key_of(before)] = key_of(after)
                else:
                    return _Difference(
                        METADATA_ADDRESS_CHANGED,
                        f"`{name}` gets another tensor here {texts.again}; a replay goes on with "
                        "that of the capture",
                        first.call,
                        second.call,
                        key_of(before),
                    )
            elif isinstance(before, _NUMBERS) and before != after and before == before:
                return _Difference(
                    PYTHON_SCALAR_FROZEN,
                    f"`{name}` gets {before!r} in the capture and {after!r} {texts.again}; every "
                    f"replay uses {before!r}",
                    first.call,
                    second.call,
                    at=at,
                    leaf=leaf,
                )
        same |= zip(map(key_of, first.results), map(key_of, second.results), strict=False)
        same_memory |= zip(
            map(_address, first.results), map(_address, second.results), strict=False
        )
    if len(again) > len(steps):
        call = again[len(steps)].call
        assert call is not None
        reason = f"`{call.name}` runs {texts.again}, and not in the capture"
        return _Difference(CONTROL_FLOW_FROZEN, reason, None, call, at=len(steps))
    return None


def _address(tensor: torch.Tensor) -> int:
    return 0 if is_emptied(tensor) or not has_memory(tensor) else tensor.data_ptr()


def _filled(captured: list[Step], again: _Again, texts: Texts) -> _Difference | None:
    """The call fills memory on the host, and copies from it; a replay only copies."""
    at = min(again.filled.values())
    steps = [step for step in captured if step.call is not None]
    if at >= len(steps) or at >= len(again.steps):
        return None
    call = steps[at].call
    return _Difference(
        PYTHON_SCALAR_FROZEN,
        f"`{call.name if call else ''}` copies what the code writes on the host; {texts.again}, "
        "that is something else, and a replay writes nothing there",
        call,
        again.steps[at].call,
        at=at,
    )


def _part_of(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Which part of its memory a tensor is: shape, strides, and where it begins."""
    if not has_memory(tensor):
        return (), (), 0
    return tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())


def _part_in_words(tensor: torch.Tensor, other: torch.Tensor) -> str:
    shape, strides, offset = _part_of(tensor)
    if shape != tuple(other.shape):
        return f"{list(shape)}"
    return f"the part at {offset}" if offset != other.storage_offset() else f"strides {strides}"


def _of_first_call(call: OpCall, second: Step | None, texts: Texts) -> str:
    reason = f"`{call.name}` runs in the captured call"
    if second is not None and second.call is not None and second.call.chain[:1]:
        site = frame_of(second.call.chain[0])
        reason += f"; {texts.again}, `{second.call.name}` runs instead, at line {site.line}"
    else:
        reason += f", and not {texts.again}"
    return f"{reason}: every replay repeats {texts.repeated}"


def steps_of(graph: WatchedGraph) -> list[Step]:
    """What a captured graph runs."""
    cuda_graph: Any = graph.graph()
    return [] if cuda_graph is None else list(cuda_graph._graph.steps)


def signature(steps: list[Step]) -> bytes:
    """Equal for the same ops with the same numbers, whatever the tensors."""
    ops = hashlib.sha256()
    for step in steps:
        if step.call is not None:
            leaves = [None if _is_tensor(leaf) else leaf for leaf in _leaves(step)]
            ops.update(repr((step.call.name, leaves)).encode())
    return ops.digest()


def _functions(steps: list[Step]) -> list[CodeType]:
    """Whose lines call the ops."""
    calls = [step.call for step in steps if step.call is not None]
    return [call.chain[0][0] for call in calls if call.chain]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _names(steps: list[Step]) -> list[str]:
    return [step.call.name for step in steps if step.call is not None]


def _number_at(steps: list[Step], at: int, leaf: int) -> tuple[str, str]:
    """The name of an op, and what it gets in place of a tensor."""
    called = [step for step in steps if step.call is not None][at : at + 1]
    if not called or called[0].call is None:
        return "", ""
    values = _leaves(called[0])[leaf : leaf + 1]
    numbers = [
        _part_of(each) if not _is_number(each) else each.tolist() if _is_tensor(each) else each
        for each in values
    ]
    return called[0].call.name, repr(numbers)


def _is_number(value: Any) -> bool:
    """Not a tensor on the device."""
    return not _is_tensor(value) or (place_of(value) == HOST and value.numel() <= _FEW)


def _leaves(step: Step) -> list[Any]:
    return pytree.tree_leaves((step.args, step.kwargs))
