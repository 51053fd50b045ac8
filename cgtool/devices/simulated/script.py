"""``cgtool check script.py`` on the simulated device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from cgtool.detectors.script.run import run
from cgtool.devices.simulated.cudagraph import CUDAGraph
from cgtool.devices.simulated.redirect import redirected
from cgtool.devices.simulated.script_device import ScriptDevice
from cgtool.model.finding import Finding
from cgtool.model.options import Progress
from cgtool.observe.annotations import watch as watch_annotations
from cgtool.observe.script.script import ObservedScript
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import HOST_EMPTY_CACHE


@contextlib.contextmanager
def _graphs(device: ScriptDevice) -> Iterator[None]:
    """PyTorch's capture functions, on graphs of the simulated device."""
    graphs: Any = torch.cuda.graphs

    def is_current_stream_capturing() -> bool:
        return device.current_is_capturing

    with Patches() as patches:
        for owner in (torch.cuda, graphs):
            patches.set(owner, "CUDAGraph", device.graph_class)
            patches.set(owner, "graph_pool_handle", device.new_pool)
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
    with watch_annotations() as annotations:
        own = {"device": device, "annotations": annotations}
        device.graph_class = type("CUDAGraph", (CUDAGraph,), own)
        with redirected(device), _graphs(device):
            script = ObservedScript(device, annotations)
            device.captured = script.captured_op
            return run(path, arguments, script, device.findings, progress)
