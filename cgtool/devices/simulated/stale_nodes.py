"""Autograd nodes that belong to the default stream, and that a captured backward reaches.

A parameter's ``AccumulateGrad`` node keeps the stream on which it was created, and lives as long as
an autograd graph that uses the parameter. A factory runs on the default stream. What it has
computed and still holds (a pruned weight, a loss) keeps its nodes alive, and the backward of a
capture would make the default stream wait for the capture.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from cgtool.devices.simulated.device_model import DeviceModel
from cgtool.findings import code
from cgtool.model.capture import Frame
from cgtool.observe.frames import call_user
from cgtool.observe.tensors import nodes_behind, on_host, tensors_in
from cgtool.program.workload import Workload, reachable_from
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import BACKWARD

ACCUMULATE_GRAD_DEFAULT_STREAM = code("accumulate-grad-default-stream")
_HELD_BY = "cgtool: held by"
"""Key in the metadata of a node, which lives as long as the node."""


def mark_stale(workload: Workload) -> None:
    """Mark the nodes that the workload keeps alive now, before its warm-up."""
    for path, tensor in reachable_from(workload).tensors.values():
        if tensor.grad_fn is not None and not on_host(tensor):
            for node in _accumulating([tensor]):
                node.metadata[_HELD_BY] = path


@contextlib.contextmanager
def refused(model: DeviceModel, entry: Frame | None) -> Iterator[None]:
    """While entered, a captured backward that reaches a marked node is refused: at ``entry``, or
    at the line that calls it."""

    def run(original: Callable[..., Any], outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if model.capturing:
            held_by = (node.metadata.get(_HELD_BY) for node in _accumulating(tensors_in(outputs)))
            if (path := next(filter(None, held_by), None)) is not None:
                model.report(
                    ACCUMULATE_GRAD_DEFAULT_STREAM,
                    "backward would make the default stream wait for the capture (906): the graph "
                    f"behind `{path}` was computed on the default stream, and keeps an autograd "
                    "node of it alive",
                    () if entry is None else (entry,),
                    fix=f"delete `{path}` before the capture, or recompute it on another stream "
                    "(`with torch.cuda.stream(torch.cuda.Stream())`)",
                )
        return call_user(original, outputs, *args, **kwargs)

    with Patches() as patches:
        patches.wrap(*BACKWARD, run)
        yield


def _accumulating(tensors: Iterable[torch.Tensor]) -> Iterator[Any]:
    """The ``AccumulateGrad`` nodes behind tensors."""
    nodes = nodes_behind(tensor.grad_fn for tensor in tensors)
    return (node for node in nodes if hasattr(node, "variable"))
