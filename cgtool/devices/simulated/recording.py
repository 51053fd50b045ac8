"""The graphs that a program captures on the simulated device (``cgtool run`` without a GPU)."""

from __future__ import annotations

import contextlib
from typing import Any

from cgtool.devices.simulated.cudagraph import CUDAGraph, ScriptRecorder, graphs_of
from cgtool.devices.simulated.device import SimulatedDevice
from cgtool.devices.simulated.graph import SimulatedGraph
from cgtool.devices.simulated.redirect import redirected
from cgtool.devices.simulated.script_device import ScriptDevice
from cgtool.model.capture import Contents, Edge, Environment, Function, Node
from cgtool.observe.annotations import Annotations
from cgtool.observe.ops import Record
from cgtool.observe.origins import OriginTable
from cgtool.torch_compat import op_key
from cgtool.torch_compat.patches import Patches


class _Watch:
    """A capture in progress: the record that the device keeps of it."""

    def __init__(self, recorder: ScriptRecorder, table: OriginTable) -> None:
        self._graph: SimulatedGraph = recorder.graph
        self._record: Record = recorder.record
        self._table = table
        self._watching = contextlib.ExitStack()
        self._watching.enter_context(op_key.watch(recorder.observe))

    def read(self) -> Contents:
        origins = self._table
        nodes = tuple(
            Node(
                id=index,
                type="op",
                origin=origins.add(node.call, self._record),
                call=node.call.index,
                shape=node.shape,
            )
            for index, node in enumerate(self._graph.nodes)
        )
        edges = (
            Edge(source, target)
            for target, node in enumerate(self._graph.nodes)
            for source in node.dependencies
        )
        return nodes, tuple(edges)

    def stop(self) -> None:
        self._watching.close()


class SimulatedRecording:
    """The simulated device, for ``recording.recorder``: installed for the rest of the process."""

    def __init__(self, patches: Patches, because: str) -> None:
        self._because = because
        device = ScriptDevice()
        device.graph_class = type(
            "CUDAGraph", (CUDAGraph,), {"device": device, "annotations": Annotations()}
        )
        self.graph_class: Any = device.graph_class
        self._device = device
        patches.enter_context(redirected(device))
        patches.enter_context(graphs_of(device))

    def environment(self) -> Environment:
        return SimulatedDevice(self._because).environment()

    def prepare(self) -> None:
        """Nothing takes long."""

    def watch(self, graph: Any, table: OriginTable) -> _Watch:
        return _Watch(graph.recorder, table)

    def functions(self) -> tuple[Function, ...]:
        return ()

    def reserved_bytes(self) -> int | None:
        return sum(map(self._device.pool_bytes, self._device.pools))
