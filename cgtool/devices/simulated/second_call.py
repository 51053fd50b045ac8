"""A second call of captured code against a second replay.

The first replay of a graph is the call that was captured. From the second on, a replay repeats that
call, where eager code would run again: with the moments that an optimizer made in its first step,
the caches that it filled, the numbers that it counted. So the code of a capture is run once more
after one replay, in a process that is forked for it, and what it computes is compared with a second
replay. The script and its own replays are not touched.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import torch
from msgspec.structs import replace

from cgtool.analysis.reports import explain_findings, is_hazard
from cgtool.detectors.compare_iterations import METADATA_ADDRESS_CHANGED
from cgtool.detectors.frozen_values import CONTROL_FLOW_FROZEN, PYTHON_SCALAR_FROZEN
from cgtool.devices.simulated.forked import ForkedProcess, can_fork
from cgtool.devices.simulated.graph import SimulatedGraph, Step
from cgtool.devices.simulated.script_device import ScriptDevice
from cgtool.model.capture import Frames
from cgtool.model.finding import ERROR, Finding
from cgtool.observe.annotations import Annotations
from cgtool.observe.effects import effect_of, overwrites, written_by
from cgtool.observe.frames import Chain, frame_of, frames_of
from cgtool.observe.ops import OpCall, OpRecorder
from cgtool.observe.script import events
from cgtool.observe.script.blocks import RUNS_AGAIN, Block, block_of
from cgtool.observe.script.script import ObservedScript
from cgtool.observe.script.state import WatchedGraph
from cgtool.observe.tensors import HOST, is_emptied, key_of, place_of, tensors_in
from cgtool.torch_compat.dispatch_keys import Args, Kwargs
from cgtool.torch_compat.op_key import unobserved
from cgtool.torch_compat.private import no_torch_function, pytree

_MOST = 16
"""Graphs of a script of which this is tried."""
_MOST_BYTES = 2 << 30
"""Of what a graph reads and writes, which is copied twice."""
_SECONDS = 20.0
"""For one of them."""
_NUMBERS = int, float, complex, bool, str
_FIXES = {
    CONTROL_FLOW_FROZEN: "if only its first call differs, run the code once, as a warm-up, before "
    "the capture; if a value of the host decides, select on the device, or capture one graph for "
    "each branch",
}


class SecondCalls:
    """Tries a second call of what a script captures.

    One graph of each line, and only where Python's source has the captured statements.
    """

    def __init__(self, script: ObservedScript, device: ScriptDevice) -> None:
        self._script, self._device = script, device
        self._block: Block | None = None
        """Of the capture in progress."""
        self._places: set[Frames] = set()
        self._running: tuple[WatchedGraph, ForkedProcess] | None = None
        """A graph, and the process that calls its code again."""
        self._answers: list[tuple[WatchedGraph, Finding]] = []
        script.subscribe(events.CaptureBegan, self._began)
        script.subscribe(events.CaptureEnded, self._ended)
        script.subscribe(events.CaptureFailed, self._failed)

    def __enter__(self) -> SecondCalls:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._wait(0.0)

    def _began(self, event: events.CaptureBegan) -> None:
        self._block, place = None, event.graph.frames
        if place not in self._places and len(self._places) < _MOST:
            self._places.add(place)
            self._block = block_of(self._script.frame())

    def _failed(self, _event: events.CaptureFailed) -> None:
        self._block = None

    def _ended(self, event: events.CaptureEnded) -> None:
        block, self._block = self._block, None
        before = None if block is None else block.before()
        if block is None or before is None or not can_fork():
            return
        self._wait(_SECONDS)
        answer = partial(_answer, self._script, self._device, event.graph, block, before)
        self._running = event.graph, ForkedProcess(answer, 2 * _SECONDS)

    def _wait(self, seconds: float) -> None:
        """For the process that runs; it is ended if it takes longer."""
        if self._running is not None:
            graph, process = self._running
            self._running = None
            answer = process.answer(seconds)
            if answer:
                self._answers.append((graph, msgspec.msgpack.decode(answer, type=Finding)))

    def report(self) -> None:
        """The script has ended. What is found here is reported if there is no other error, nor a
        warning at its line, nor of a branch in its function, and the graph is not one of several
        that the same line captures: those may be meant for different calls."""
        self._wait(_SECONDS)
        log = self._device.findings
        known = [each for each in explain_findings(log) if is_hazard(each)]
        if any(each.severity == ERROR for each in known):
            return
        lines = {each.frames[:1] for each in known}
        branches = [_function_of(each) for each in known if each.code == CONTROL_FLOW_FROZEN]
        by_place = self._script.graphs_by_place()
        for graph, finding in self._answers:
            is_alone = len(by_place[graph.frames]) == 1
            is_branch = finding.code == CONTROL_FLOW_FROZEN and _function_of(finding) in branches
            is_known = is_branch or finding.frames[:1] in lines
            if graph.replays > 1 and is_alone and not is_known:
                log.add(finding)


def _answer(
    script: ObservedScript,
    device: ScriptDevice,
    graph: WatchedGraph,
    block: Block,
    before: dict[str, Any],
) -> bytes:
    """In the forked process: the finding, if there is one."""
    torch.set_num_threads(1)  # those of the script are not here
    script.closed = True
    cuda_graph: Any = graph.graph()
    simulated: SimulatedGraph = cuda_graph._graph
    twice = _Twice(script, device, graph, simulated, cuda_graph.registered)
    finding = twice.compared(block, before) if twice.bytes <= _MOST_BYTES else None
    return b"" if finding is None else msgspec.msgpack.encode(finding)


@dataclass
class _Memory:
    """What a graph reads and writes, and the state of generators."""

    storages: dict[int, torch.Tensor]
    """By key: a tensor with its memory."""
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


class _Again(OpRecorder):
    """Notes the ops of the second call, as those of the graph are noted."""

    def __init__(self, device: ScriptDevice, annotations: Annotations, known: set[int]) -> None:
        super().__init__({}, annotations)
        self._device = device
        self.steps: list[Step] = []
        self.written: set[int] = set()
        self.read_first: set[int] = set()
        """What is read, or changed in part, before it is overwritten."""
        self.before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """What is written that the graph has not: its memory, and a copy of it before."""
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
            self.before[key] = written[key].detach(), _copied(written[key])
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


class _Twice:
    """A second replay, and a second call, from the same state."""

    def __init__(
        self,
        script: ObservedScript,
        device: ScriptDevice,
        graph: WatchedGraph,
        simulated: SimulatedGraph,
        generators: list[torch.Generator],
    ) -> None:
        self._script, self._device = script, device
        self._graph, self._simulated = graph, simulated
        storages = {
            key: tensor
            for step in simulated.steps
            for tensor in tensors_in((step.args, step.kwargs, step.results))
            if (key := key_of(tensor)) is not None and not is_emptied(tensor)
        }
        self.bytes = sum(each.untyped_storage().nbytes() for each in storages.values())
        self._memory = _Memory(storages, [torch.default_generator, *generators])

    def _replay(self) -> None:
        with unobserved(), no_torch_function():
            self._simulated.replay()

    def compared(self, block: Block, before: dict[str, Any]) -> Finding | None:
        """What differs after them, if something does, and why, if that shows."""
        memory, graph = self._memory, self._graph
        self._replay()
        with unobserved():
            memory.save()
        self._replay()
        with unobserved():
            storages = {key: _copied(each) for key, each in memory.storages.items()}
            outputs = {name: [*map(_copied, tensors_in(value))] for name, value in block.assigned()}
            leaves = [each for each in gc.get_objects() if _has_gradient_of(each, graph)]
            gradients = [_copied(leaf.grad) for leaf in leaves]
            memory.restore()
        for leaf in leaves:
            leaf.grad = None  # what a graph allocates, each replay writes anew
        again = self._call(block, before)
        pairs = [
            *(("memory", memory.storages[key], storages[key])
              for key in self._state(again) & storages.keys()),
            *(("memory", *each) for key, each in again.before.items() if key in again.read_first),
            *(("gradients", leaf.grad, gradient)
              for leaf, gradient in zip(leaves, gradients, strict=True) if leaf.grad is not None),
        ]  # fmt: skip
        for name, value in block.assigned():
            tensors = [*tensors_in(value)]
            if len(tensors) == len(outputs.get(name, ())):
                pairs += [(f"`{name}`", *each) for each in zip(tensors, outputs[name], strict=True)]
        with unobserved(), no_torch_function():
            differing = [name for name, ours, theirs in pairs if not _equal(ours, theirs)]
        return self._finding(again, [*dict.fromkeys(differing)]) if differing else None

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

    def _call(self, block: Block, before: dict[str, Any]) -> _Again:
        again = _Again(self._device, self._script.annotations, {*self._memory.storages})
        for owner in (torch.cuda, torch.cuda.graphs):
            # Another branch is another finding.
            owner.is_current_stream_capturing = lambda: True  # type: ignore[attr-defined]
        self._device.recorder = again
        block.run(before)
        self._device.recorder = None
        return again

    def _finding(self, again: _Again, differing: list[str]) -> Finding | None:
        difference = _first_difference(self._simulated.steps, again.steps)
        if difference is None:
            return None  # what no op shows: the state of a custom op, for example
        kind, reason, chain = difference
        return Finding(
            kind,
            reason,
            _of_program(frames_of(chain)) or self._graph.frames,
            phase="replay",
            fix=_FIXES.get(kind),
            evidence=(
                "a second call of the captured code, and a second replay, differ in: "
                + ", ".join(differing[:3]),
            ),
        )


def _of_program(frames: Frames) -> Frames:
    """Without the function that was made of the block, in the frame that ran it."""
    for at, frame in enumerate(frames[:-1]):
        if frame.function == RUNS_AGAIN:
            return (*frames[:at], replace(frames[at + 1], line=frame.line), *frames[at + 2 :])
    return frames


def _by_key(values: Any) -> Iterator[tuple[int, torch.Tensor]]:
    for tensor in tensors_in(values):
        key = key_of(tensor)
        if key is not None:
            yield key, tensor


def _function_of(finding: Finding) -> list[tuple[str, str]]:
    return [(frame.file, frame.function) for frame in finding.frames[:1]]


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


def _has_gradient_of(value: Any, graph: WatchedGraph) -> bool:
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


def _first_difference(captured: list[Step], again: list[Step]) -> tuple[Any, str, Chain] | None:
    """The code, the reason, and the place of the first op that is not the same one."""
    steps = [step for step in captured if step.call is not None]
    same: dict[int | None, int | None] = {}
    for at, first in enumerate(steps):
        second = again[at] if at < len(again) else None
        assert first.call is not None
        if second is None or second.call is None or second.call.name != first.call.name:
            return CONTROL_FLOW_FROZEN, _of_first_call(first.call, second), first.call.chain
        numbers = zip(_leaves(first), _leaves(second), strict=False)
        for before, after in numbers:
            if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
                if place_of(before) == place_of(after) == HOST:
                    if _equal(before, after):
                        continue
                    return (
                        PYTHON_SCALAR_FROZEN,
                        f"`{first.call.name}` gets other numbers from the host when the code runs "
                        "again; every replay uses those of the capture",
                        second.call.chain or first.call.chain,
                    )
                expected = same.get(key_of(before), key_of(before))
                if key_of(after) != expected:
                    return (
                        METADATA_ADDRESS_CHANGED,
                        f"`{first.call.name}` gets another tensor here when the code runs again; "
                        "a replay goes on with that of the capture",
                        second.call.chain or first.call.chain,
                    )
            elif isinstance(before, _NUMBERS) and before != after and before == before:
                return (
                    PYTHON_SCALAR_FROZEN,
                    f"`{first.call.name}` gets {before!r} in the capture and {after!r} when the "
                    f"code runs again; every replay uses {before!r}",
                    second.call.chain or first.call.chain,
                )
        same |= zip(map(key_of, first.results), map(key_of, second.results), strict=False)
    if len(again) > len(steps):
        call = again[len(steps)].call
        assert call is not None
        reason = f"`{call.name}` runs when the code is called again, and not in the capture"
        return CONTROL_FLOW_FROZEN, reason, call.chain
    return None


def _of_first_call(call: OpCall, second: Step | None) -> str:
    reason = f"`{call.name}` runs in the captured call, and not when the code is called again"
    if second is not None and second.call is not None and second.call.chain[:1]:
        site = frame_of(second.call.chain[0])
        reason += f", which goes on with `{second.call.name}` at line {site.line}"
    return f"{reason}: every replay repeats the first call"


def _leaves(step: Step) -> list[Any]:
    return pytree.tree_leaves((step.args, step.kwargs))
