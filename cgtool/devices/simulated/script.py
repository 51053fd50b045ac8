"""``cgtool check script.py`` on the simulated device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from cgtool.detectors.script.run import run
from cgtool.devices.simulated.cudagraph import CUDAGraph
from cgtool.devices.simulated.function_mode import FunctionMode
from cgtool.devices.simulated.recording import Owners, Places
from cgtool.devices.simulated.redirect import redirected
from cgtool.devices.simulated.script_device import PoolId, ScriptDevice
from cgtool.model.finding import Finding
from cgtool.model.options import Progress
from cgtool.observe.annotations import watch as watch_annotations
from cgtool.observe.ops import OpRecorder
from cgtool.observe.placement import place_of
from cgtool.observe.script.script import ObservedScript
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import HOST_EMPTY_CACHE, storage_key


class _Device:
    """The simulated device, for the observers of a script (``observe.script.script.Device``)."""

    simulated = True

    def __init__(self, device: ScriptDevice, graph_class: Any) -> None:
        self._device = device
        self.graph_class = graph_class
        self._owners: Owners = graph_class.owners
        self._places: Places = graph_class.places

    @property
    def recorder(self) -> OpRecorder | None:
        return self._device.recorder

    @property
    def on_host(self) -> bool:
        return self._device.on_host

    def capture_began(self, script: ObservedScript) -> None:
        """The recorder came with ``capture_begin``."""

    def capture_over(self) -> None:
        """And went with ``capture_end``."""

    def place(self, tensor: torch.Tensor) -> str:
        return place_of(tensor)

    def address(self, storage: torch.UntypedStorage) -> int:
        return self._places.address.get(storage_key(storage), storage.data_ptr())

    def is_dead(self, ref: StorageWeakRef) -> bool:
        return self._owners.dead(ref)

    def pool_bytes(self, pool: tuple[int, int]) -> int:
        model = self._device.pools[pool]
        return sum(block.bytes for first in model.segments for block in model.blocks(first))

    def keeps_graph(self, graph: Any) -> bool:
        return bool(graph.keep_graph)

    def captured_nodes(self) -> int:
        return 0

    def template(self, graph: Any) -> None:
        return None

    def thread_modes(self) -> list[Any]:
        return [FunctionMode(self._device)]

    def stream(self) -> int:
        return int(self._device.current.cuda_stream)


@contextlib.contextmanager
def _graphs(device: ScriptDevice, graph_class: Any) -> Iterator[None]:
    """PyTorch's capture functions, on graphs of the simulated device."""
    graphs: Any = torch.cuda.graphs

    def graph_pool_handle() -> PoolId:
        return device.new_pool()

    def is_current_stream_capturing() -> bool:
        return device.current_is_capturing

    with Patches() as patches:
        for owner in (torch.cuda, graphs):
            patches.set(owner, "CUDAGraph", graph_class)
            patches.set(owner, "graph_pool_handle", graph_pool_handle)
            patches.set(owner, "is_current_stream_capturing", is_current_stream_capturing)
        patches.set(torch.cuda, "graph", graphs.graph)
        patches.set(torch.cuda, "make_graphed_callables", graphs.make_graphed_callables)
        patches.set(*HOST_EMPTY_CACHE, lambda: None)
        patches.set(graphs.graph, "default_capture_stream", None)
        yield


def check(
    path: str, arguments: tuple[str, ...], progress: Progress
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """(findings, what was looked at) of a script. Raises CgtoolError as ``run`` does."""
    device = ScriptDevice()
    owners = Owners()
    with watch_annotations() as annotations:
        graph_class = type(
            "CUDAGraph",
            (CUDAGraph,),
            {
                "device": device,
                "owners": owners,
                "places": Places(owners),
                "annotations": annotations,
            },
        )
        with redirected(device), _graphs(device, graph_class):
            script = ObservedScript(_Device(device, graph_class), annotations)
            device.captured = script.captured_op
            return run(path, arguments, script, device.findings, progress)
