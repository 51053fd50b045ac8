"""A simulated capture: the op record, and its replay on the very storages that were recorded.

During capture every op runs once and is recorded with its arguments and results. A replay runs the
recorded ops again without the user's Python: ops that write in place do so again, and the results
of the others are copied over the recorded results. So frozen numbers stay frozen, a rebound input
is ignored, and an output is overwritten by the next replay, as on a GPU. (On a GPU the capture
itself computes nothing; here it does, and its effects stay.)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any

import torch

from cgtool.detectors.refused_ops import run_checked
from cgtool.detectors.streams import LaneNode
from cgtool.devices.simulated.collectives import COLLECTIVES, Running
from cgtool.devices.simulated.device_model import DeviceModel
from cgtool.observe.access import AccessLog
from cgtool.observe.effects import effect_of, launches
from cgtool.observe.frames import call_user
from cgtool.observe.ops import OpCall, OpRecorder
from cgtool.observe.tensors import (
    HOST,
    is_emptied,
    key_of,
    needed_bytes,
    place_of,
    strided_parts,
    tensors_in,
)
from cgtool.torch_compat.dispatch_keys import Args, Kwargs
from cgtool.torch_compat.op_key import unobserved
from cgtool.torch_compat.private import below_autograd, dispatches_to_python, pytree


@dataclass
class Step:
    """One recorded action that a replay repeats."""

    func: Any
    args: Args
    kwargs: Kwargs
    results: list[torch.Tensor]
    call: OpCall | None = None
    """None for a change of the generator's state, which is not an op."""
    grad_mode: bool = False
    """Kernels look at it: that of an LSTM on a CPU keeps what its backward needs."""
    is_captured: bool = True
    """False for work of the time of the capture that no replay repeats."""


@dataclass(slots=True)
class SimulatedNode(LaneNode):
    """An op that launches work on a GPU, with the dtypes and shapes of its results."""

    shape: str


@dataclass(eq=False)
class SimulatedGraph:
    steps: list[Step] = field(default_factory=list)
    nodes: list[SimulatedNode] = field(default_factory=list)
    stream_names: list[str] = field(default_factory=list)
    host_ops: int = 0
    """Ops on host tensors, which are not part of the graph."""
    repeated_state: torch.Tensor | None = None
    """The generator's state at the begin of the capture, if the code set it back to that: what the
    graph draws adds up to nothing, and a replay neither reads nor advances the generator
    (``detectors.generator_states``)."""

    def replay(self) -> None:
        """Run the recorded ops again, in order, on the recorded storages."""
        with self.running():
            self._run()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """To be entered while steps run: the generator has the state that the graph begins with,
        and all tensors have the memory of the capture, though the program has given some of it
        back: on a GPU it belongs to the graph."""
        generator = torch.default_generator
        state = generator.get_state() if self.repeated_state is not None else None
        if self.repeated_state is not None:
            generator.set_state(self.repeated_state)
        given: list[tuple[torch.UntypedStorage, int]] = []
        for step in self.steps:
            for tensor in tensors_in((step.args, step.kwargs, step.results)):
                if is_emptied(tensor):
                    storage = tensor.untyped_storage()
                    given.append((storage, storage.nbytes()))
                    storage.resize_(needed_bytes(tensor))
        try:
            yield
        finally:
            for storage, size in reversed(given):
                storage.resize_(size)
            if state is not None:
                generator.set_state(state)

    def _run(self) -> None:
        # Tensors created in inference mode can be written only in it.
        inference = any(tensor.is_inference() for step in self.steps for tensor in step.results)
        with torch.inference_mode() if inference else below_autograd():
            running = Running()
            for step in filter(attrgetter("is_captured"), self.steps):
                running.wait((step.args, step.kwargs))
                with torch.set_grad_enabled(step.grad_mode):
                    output = call_user(step.func, *step.args, **step.kwargs)
                if step.call is not None and step.call.name.startswith(COLLECTIVES):
                    running.began(step.func, step.args, step.kwargs, output)
                for old, new in zip(step.results, tensors_in(output), strict=True):
                    _overwrite(old, new)
            running.wait()


def _overwrite(old: torch.Tensor, new: torch.Tensor) -> None:
    """Copy a result over that of the capture, part by part if it is made of other tensors."""
    pairs = zip(strided_parts(old), strided_parts(new), strict=True)
    for (_, old_part), (_, new_part) in pairs:
        # What was written in place is the recorded storage itself.
        if old_part.data_ptr() != new_part.data_ptr():
            old_part.copy_(new_part)


def _held(tensor: torch.Tensor) -> torch.Tensor:
    # A launch copies the value of a host scalar.
    return _alias(tensor).clone() if place_of(tensor) == HOST else _alias(tensor)


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    # A subclass with its own ops has no memory to alias.
    own = dispatches_to_python(tensor)
    return tensor if own else tensor.detach()


def _shape(tensors: list[torch.Tensor]) -> str:
    return ", ".join(
        f"{str(tensor.dtype).removeprefix('torch.')}"
        f"[{'nested' if tensor.is_nested else ','.join(map(str, tensor.shape))}]"
        for tensor in tensors[:3]
    )


RandomStates = dict[int, torch.Tensor]
"""Generator states that replays save and restore (activation checkpointing), by the ``id`` of the
state that the captured code did this with."""


class CaptureRecorder(OpRecorder):
    """Records a graph while the simulated device is capturing."""

    def __init__(
        self,
        roots: Any,
        annotations: Any,
        device: DeviceModel,
        states: RandomStates,
        accesses: AccessLog | None = None,
        graph: SimulatedGraph | None = None,
    ) -> None:
        super().__init__(roots, annotations, accesses=accesses)
        self.device = device
        self.graph = SimulatedGraph() if graph is None else graph
        self._begin: torch.Tensor | None = None
        """The generator's state when the capture began."""
        self._random = states
        self._owners = device.memory.record_of(self.graph)
        """The owners that the record adds to storages."""
        device.random_state = self._random_state

    def execute(self, call: OpCall, func: Any, args: Args, kwargs: Kwargs) -> Any:
        if self.device.on_host:
            # Host ops run once, during capture: their results are frozen.
            self.graph.host_ops += 1
            return self.run(func, args, kwargs)
        self.device.call, self.device.record = call, self.record
        try:
            return self._keep(call, func, args, kwargs)
        finally:
            self.device.call = None

    def _keep(self, call: OpCall, func: Any, args: Args, kwargs: Kwargs) -> Any:
        run = partial(self.run, func, args, kwargs)
        output = run_checked(self.device, call, func, args, kwargs, run)
        effect = effect_of(func)
        if effect.view or call.name.startswith("profiler::"):
            return output
        results = list(tensors_in(output))
        # Aliases: what the caller does to its tensor objects later (set_, resize_,
        # requires_grad_) must not affect the record.
        with unobserved():
            kept = [_alias(tensor) for tensor in results]
            held_args, held_kwargs = pytree.tree_map_only(torch.Tensor, _held, (args, kwargs))
        step = Step(func, held_args, held_kwargs, kept, call, torch.is_grad_enabled())
        self.graph.steps.append(step)
        held = tensors_in((step.args, step.kwargs, step.results))
        self.device.memory.hold(self._owners, held)
        touched = results
        is_collective = call.name.startswith(COLLECTIVES)
        if not results and (effect.writes or is_collective):
            # Multi-tensor ops return nothing and write their first argument, and collectives.
            touched = list(tensors_in(args))
        if is_collective or launches(call.name, touched):
            given = set(map(key_of, tensors_in((args, kwargs))))
            made = [tensor for tensor in results if key_of(tensor) not in given]
            node = self.device.add_node(call, allocates=bool(made))
            step.is_captured = node is not None
            if node is not None:
                self.device.note_memory(func, args, kwargs, output)
                self.graph.nodes.append(
                    SimulatedNode(call, node.stream, node.dependencies, _shape(touched))
                )
            if self.accesses is not None:
                call.access = self.accesses.note(call.name, func, args, kwargs, output)
        return output

    def __enter__(self) -> CaptureRecorder:
        self._begin = torch.default_generator.get_state()
        super().__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        begin, end = self._begin, torch.default_generator.get_state()
        is_set = any(step.call is None for step in self.graph.steps)
        if is_set and begin is not None and torch.equal(begin, end):
            self.graph.repeated_state = begin

    def _random_state(self, action: str, state: torch.Tensor) -> None:
        states = self._random

        def save(state: torch.Tensor) -> None:
            states[id(state)] = torch.get_rng_state()

        def restore(state: torch.Tensor) -> None:
            if id(state) in states:
                torch.set_rng_state(states[id(state)])

        # The step keeps the state alive, so that no other one gets its id.
        self.graph.steps.append(Step(save if action == "saved" else restore, (state,), {}, []))
