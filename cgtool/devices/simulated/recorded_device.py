"""The graphs that a program captures on the simulated device (``cgtool run`` without a GPU)."""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Container, Sequence, Set
from functools import partial
from typing import Any

import torch

from cgtool.devices.simulated.cudagraph import CUDAGraph, ScriptRecorder, graphs_of
from cgtool.devices.simulated.device import SimulatedDevice, contents_of
from cgtool.devices.simulated.graph import SimulatedGraph
from cgtool.devices.simulated.redirect import redirected
from cgtool.devices.simulated.script_device import GraphMemory, ScriptDevice
from cgtool.devices.simulated.stepping import SimulatedStepper
from cgtool.devices.values import values_of
from cgtool.model import clock
from cgtool.model.capture import Contents, Environment, Frame, Function
from cgtool.model.finding import Finding
from cgtool.model.records import Allocated
from cgtool.observe.access import AccessLog
from cgtool.observe.annotations import Annotations
from cgtool.observe.frames import Chain, chain_of, frames_of
from cgtool.observe.ops import UNKNOWN, Record
from cgtool.observe.origins import OriginTable
from cgtool.observe.tensors import key_of
from cgtool.observe.waiting import chain_or_waiting
from cgtool.torch_compat import op_key
from cgtool.torch_compat.allocator import PoolSegment, pool_segments
from cgtool.torch_compat.op_key import unobserved
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import no_torch_function
from cgtool.torch_compat.storages import StorageRef
from cgtool.torch_compat.weak import Weak


class _Watch:
    """A capture in progress: the record that the device keeps of it."""

    _graph: SimulatedGraph
    _record: Record

    def __init__(self, device: ScriptDevice, table: OriginTable, deaths: _Deaths) -> None:
        self._device, self._deaths = device, deaths
        self._table = table
        self._ended_by: Finding | None = None
        self._watching = contextlib.ExitStack()

    def begin(self, graph: Any) -> None:
        recorder: ScriptRecorder = graph.recorder
        self._graph, self._record = recorder.graph, recorder.record
        self._accesses = recorder.accesses = AccessLog()
        self._watching.enter_context(op_key.watch(recorder.observe))

    def read(self) -> Callable[[Any], Contents]:
        self._ended_by = self._device.ended_by
        nodes = list(self._graph.nodes)
        calls = [node.call.index for node in nodes]
        return lambda _: contents_of(nodes, calls, self._record, self._table)

    def storages(self) -> list[StorageRef]:
        reads, writes = (defaultdict[int, list[int]](list) for _ in range(2))
        for number, node in enumerate(self._graph.nodes):
            access = node.call.access or UNKNOWN
            for storages, nodes in ((access.reads, reads), (access.writes, writes)):
                for storage in storages:
                    nodes[storage].append(number)
        numbers = sorted(reads.keys() | writes.keys())
        outside = self._accesses.outside(numbers)
        for ref in outside.values():
            ref.address = self._device.memory.address(ref)
        self._uses = [(tuple(reads[each]), tuple(writes[each])) for each in outside]
        self._deaths.look_for_tensors({ref.key for ref in outside.values()})
        return list(outside.values())

    def uses(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        return self._uses

    def with_cause(self, finding: Finding) -> Finding:
        return self._ended_by or finding

    def stop(self) -> None:
        self._watching.close()


class _Deaths:
    """Where tensors died, or got other memory: the record of a graph keeps what a GPU would have
    given back, so nothing else tells when the program has no owner of it anymore."""

    def __init__(self, memory: GraphMemory, patches: Patches) -> None:
        self.memory = memory
        self.last: dict[int, tuple[int, Chain]] = {}
        """By key of the storage."""
        self.tensors = defaultdict[int, list[Weak[torch.Tensor]]](list)
        """By key: what ``look_for_tensors`` has found."""
        data: Any = torch.Tensor.data
        setter = partial(self._set_data, data)
        patches.replace(torch.Tensor, "data", property(data.__get__, setter))

    def _set_data(self, data: Any, tensor: torch.Tensor, value: torch.Tensor) -> None:
        key = key_of(tensor)
        data.__set__(tensor, value)
        if key is not None:
            self.note(key)

    def look_for_tensors(self, keys: Container[int]) -> None:
        """Find the tensors of Python that lead to these storages."""
        self.tensors.clear()
        for each in gc.get_objects():
            if issubclass(type(each), torch.Tensor):
                key = key_of(each)
                if key is not None and key in keys:
                    self.tensors[key].append(Weak(each, partial(self.note, key)))

    def note(self, key: int, _tensor: object = None) -> None:
        self.last[key] = clock.time_ns(), chain_or_waiting(sys._getframe())


class _Life:
    """Memory that graphs use."""

    def __init__(
        self, deaths: _Deaths, ref: StorageRef, gone: Callable[[str, Chain, int], None]
    ) -> None:
        self._deaths, self._ref, self._gone = deaths, ref, gone
        self._lived_ns = clock.time_ns()
        self._tensors = deaths.tensors.pop(ref.key, [])

    def look(self) -> None:
        if self._deaths.memory.is_dead(self._ref):
            time_ns, chain = self._deaths.last.get(self._ref.key, (0, ()))
            if time_ns < self._lived_ns:  # the death of a tensor that was not the last
                time_ns, chain = clock.time_ns(), ()
            self._gone("freed", chain, time_ns)
        else:
            self._lived_ns = clock.time_ns()


class _ProgramGraph(CUDAGraph):
    """Like PyTorch's class, whose methods call those of a class in C++."""

    lives: weakref.WeakSet[_Life]
    """Memory that graphs use."""

    def replay(self) -> None:
        for life in list(self.lives):
            life.look()
        super().replay()


class _SteppedGraph:
    def __init__(self, graph: _ProgramGraph) -> None:
        if graph._graph is None or not graph._graph.nodes:
            raise RuntimeError("it has no nodes")
        self._stepper = SimulatedStepper(graph._graph)

    def step(self, replay: Callable[[Any], None], graph: _ProgramGraph, *, is_idle: bool) -> None:
        whole, graph._graph = graph._graph, SimulatedGraph()
        try:
            replay(graph)
        finally:
            graph._graph = whole
        with unobserved(), no_torch_function():
            self._stepper.step()

    def evidence(self, node: int) -> tuple[str, ...]:
        return ()

    def close(self) -> None:
        """Nothing is left."""


class SimulatedRecordedDevice:
    """The simulated device, for ``recorder.recorder``: installed until ``patches`` are undone."""

    simulated = True

    def __init__(self, patches: Patches, because: str) -> None:
        self._because = because
        self._allocations: list[Allocated] = []
        device = ScriptDevice()
        device.reserved = self._allocated
        device.graph_class = type(
            "CUDAGraph",
            (_ProgramGraph,),
            {"device": device, "annotations": Annotations(), "lives": weakref.WeakSet()},
        )
        self.graph_class: Any = device.graph_class
        self._device = device
        patches.enter_context(redirected(device))
        self._deaths = _Deaths(device.memory, patches)
        patches.enter_context(graphs_of(device))

    def environment(self) -> Callable[[], Environment]:
        return SimulatedDevice(self._because).environment

    def notes_ops_in_python(self) -> bool:
        """False: only captures on a GPU have another recorder."""
        return False

    def when_used(self, call: Callable[[], None]) -> None:
        """Never: there is nothing to prepare."""

    def prepare(self) -> None:
        """Nothing takes long."""

    def watch(self, table: OriginTable, chain: Chain, *, compiled: bool) -> _Watch:
        return _Watch(self._device, table, self._deaths)

    def follow(self, ref: StorageRef, gone: Callable[[str, Chain, int], None]) -> _Life:
        life = _Life(self._deaths, ref, gone)
        self.graph_class.lives.add(life)
        return life

    def functions(self) -> tuple[Function, ...]:
        return ()

    def reserved_bytes(self) -> int | None:
        return sum(map(self._device.pool_bytes, self._device.pools))

    def free_bytes(self) -> int | None:
        """None: no driver is there to take memory for a graph."""

    def allocated_at(self, addresses: Set[int]) -> dict[int, tuple[Frame, ...]]:
        """Nothing: tensors of the CPU have their memory elsewhere."""
        return {}

    def digests(self, tensors: Sequence[torch.Tensor]) -> list[int | None]:
        return [each.digest for each in values_of([("", tensor) for tensor in tensors])]

    def stream(self) -> int | None:
        return None

    def new_allocations(self, *, lines: bool = False) -> list[Allocated]:
        new, self._allocations = self._allocations, []
        return new

    def _allocated(self, size: int) -> None:
        frames = frames_of(chain_of(sys._getframe(1)))
        self._allocations.append(Allocated(clock.time_ns(), size, 0, frames))

    def pool_segments(self, pool: tuple[int, int]) -> list[PoolSegment]:
        return pool_segments(pool)

    def step_graphs(self, patches: Patches) -> Callable[[Any], _SteppedGraph]:
        return _SteppedGraph

    def time_replays(self, *_args: Any) -> None:
        """Nothing runs on a GPU."""
