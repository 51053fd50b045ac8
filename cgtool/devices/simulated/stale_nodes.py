"""Autograd nodes that belong to the default stream, and that a captured backward reaches.

A parameter's ``AccumulateGrad`` node keeps the stream on which it was created, and lives as long as
something refers to it: an autograd graph that uses the parameter, or a hook. A factory runs on the
default stream. What it has computed and still holds (a pruned weight, a loss), and a hook for the
gradients of several parameters, keep their nodes alive, and the backward of a capture would make
the default stream wait for the capture (``InputBuffer::add`` of PyTorch's engine).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from cgtool.detectors.streams import ACCUMULATE_GRAD_DEFAULT_STREAM, STALE_NODE
from cgtool.devices.simulated.device_model import DeviceModel
from cgtool.model.capture import Frame
from cgtool.observe.frames import call_user
from cgtool.observe.tensors import has_shape, nodes_behind, on_host, tensors_in
from cgtool.program.workload import Workload, reachable_from
from cgtool.torch_compat.op_key import unintercepted
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import BACKWARD

_HELD = "cgtool: held"
"""Key in the metadata of a node, which live as long as the node: why it is alive, and the fix."""
_ELSEWHERE = "on another stream (`with torch.cuda.stream(torch.cuda.Stream())`)"


def mark_stale(workload: Workload, model: DeviceModel) -> None:
    """Mark the nodes that are alive now, before the first warm-up, and were made on the default
    stream. Later there are nodes that warm-up has made, on a stream of its own."""
    if model.differentiated is None:
        return
    of_side_streams, model.differentiated = model.differentiated, None
    for path, tensor in reachable_from(workload).tensors.values():
        if on_host(tensor):
            continue
        if tensor.grad_fn is not None:
            why = (
                "backward would make the default stream wait for the capture (906): the graph "
                f"behind `{path}` was computed on the default stream, and keeps an autograd node "
                "of it alive",
                f"delete `{path}` before the capture, or recompute it {_ELSEWHERE}",
            )
            for node in _accumulating([tensor]):
                if id(node.variable) not in of_side_streams:
                    node.metadata[_HELD] = why
        elif (
            tensor.requires_grad
            and type(tensor) in (torch.Tensor, torch.nn.Parameter)
            and id(tensor) not in of_side_streams
        ):
            why = f"{STALE_NODE}: that of `{path}`", f"make what keeps it {_ELSEWHERE}"
            with unintercepted(), torch.enable_grad():
                # If there is no node, one is made here, which nothing keeps.
                use = tensor.view_as(tensor) if has_shape(tensor) else tensor.clone()
            for node in _accumulating([use]):
                node.metadata.setdefault(_HELD, why)


@contextlib.contextmanager
def refused(model: DeviceModel, entry: Frame | None) -> Iterator[None]:
    """While entered, a captured backward that reaches a marked node is refused: at ``entry``, or
    at the line that calls it."""

    def run(original: Callable[..., Any], outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if model.capturing:
            reasons = (node.metadata.get(_HELD) for node in _accumulating(tensors_in(outputs)))
            if (why := next(filter(None, reasons), None)) is not None:
                frames = () if entry is None else (entry,)
                model.report(ACCUMULATE_GRAD_DEFAULT_STREAM, why[0], frames, fix=why[1])
        return call_user(original, outputs, *args, **kwargs)

    with Patches() as patches:
        patches.wrap(*BACKWARD, run)
        yield


def _accumulating(tensors: Iterable[torch.Tensor]) -> Iterator[Any]:
    """The ``AccumulateGrad`` nodes behind tensors."""
    nodes = nodes_behind(tensor.grad_fn for tensor in tensors)
    return (node for node in nodes if hasattr(node, "variable"))
