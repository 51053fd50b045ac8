"""Autograd nodes that belong to the default stream, and that a captured backward reaches.

A parameter's ``AccumulateGrad`` node keeps the stream on which it was created, and lives as long as
something refers to it: an autograd graph that uses the parameter, or a hook. A factory runs on the
default stream. What it has computed and still holds (a pruned weight, a loss), and a hook for the
gradients of several parameters, keep their nodes alive, and the backward of a capture would make
the default stream wait for the capture (``InputBuffer::add`` of PyTorch's engine).
"""

from __future__ import annotations

import collections
import contextlib
import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from cgtool.detectors.streams import ACCUMULATE_GRAD_DEFAULT_STREAM, STALE_NODE
from cgtool.devices.simulated.device_model import DeviceModel
from cgtool.model.capture import Frame
from cgtool.observe.frames import call_user
from cgtool.observe.tensors import has_shape, nodes_behind, on_host, tensors_in
from cgtool.program.workload import Workload, reachable_from
from cgtool.torch_compat.op_key import unintercepted, with_autograd
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import BACKWARD, is_profiler_enabled, no_torch_function

_HELD = "cgtool: held"
"""Key in the metadata of a node, which live as long as the node: why it is alive, and the fix."""
_COMPUTED = "cgtool: computed before the capture"
"""Key of the name of a result, in the node that computed it."""
_IS_OF_DEFAULT = "cgtool: of the default stream"
"""Key of whether a node was made by an op on the default stream: a ``_Mark``, or None."""
_OVERRIDE = "set_override_stale_capture_stream"
"""A name in ``torch.autograd.graph`` from PyTorch 2.13 on: stale nodes run on the captured
stream."""
_INPUTS = 3
"""Which argument of autograd's engine, after the outputs, names what gradients are wanted of."""
_ELSEWHERE = "on another stream (`with torch.cuda.stream(torch.cuda.Stream())`)"


class _Mark:
    """Lives as long as the node in whose metadata it is."""


_marks: weakref.WeakSet[_Mark] = weakref.WeakSet()


def note_stream(leaves: list[torch.Tensor], *, is_default: bool) -> None:
    """An op runs below autograd, which has just made the nodes of its leaves that had none.

    Nothing is noted under a profiler, which would see how.
    """
    if is_profiler_enabled():
        return
    with with_autograd(), contextlib.suppress(RuntimeError):
        for leaf in leaves:
            for node in _accumulating([_use_of(leaf)]):
                if _IS_OF_DEFAULT not in node.metadata:
                    mark = _Mark() if is_default else None
                    node.metadata[_IS_OF_DEFAULT] = mark
                    if mark is not None:
                        _marks.add(mark)


def _use_of(leaf: torch.Tensor) -> torch.Tensor:
    return leaf.view_as(leaf) if has_shape(leaf) else leaf.clone()


def mark_stale(workload: Workload, model: DeviceModel) -> None:
    """Mark the nodes that are alive now, before the first warm-up, and were made on the default
    stream. Later there are nodes that warm-up has made, on a stream of its own."""
    if model.is_warm:
        return
    model.is_warm = True
    for path, tensor in reachable_from(workload).tensors.values():
        if on_host(tensor):
            continue
        if tensor.grad_fn is not None:
            name = f"`{path}`"
            for node in _accumulating([tensor]):
                if node.metadata.get(_IS_OF_DEFAULT, True):
                    node.metadata[_HELD] = _held_by(name)
                    _note_computed(tensor, name)
        elif tensor.requires_grad and type(tensor) in (torch.Tensor, torch.nn.Parameter):
            why = _kept(path)
            # If there is no node, one is made here, which nothing keeps.
            with unintercepted(), torch.enable_grad():
                for node in _accumulating([_use_of(tensor)]):
                    if node.metadata.get(_IS_OF_DEFAULT, True):
                        node.metadata.setdefault(_HELD, why)


def _held_by(result: str) -> tuple[str, str]:
    return (
        "backward would make the default stream wait for the capture (906): the graph behind "
        f"{result} was computed on the default stream, and keeps an autograd node of it alive",
        f"delete {result} before the capture, or recompute it {_ELSEWHERE}",
    )


def _kept(leaf: str | None) -> tuple[str, str]:
    """Reason and fix where a hook or a list keeps the node. ``leaf`` is the name of the tensor."""
    whose = "a parameter" if leaf is None else f"`{leaf}`"
    return f"{STALE_NODE}: that of {whose}", f"make what keeps it {_ELSEWHERE}"


def _note_computed(result: torch.Tensor, name: str) -> None:
    node: Any = result.grad_fn
    node.metadata[_COMPUTED] = name


def _leading_to(inputs: Sequence[Any], nodes: list[Any]) -> list[Any]:
    """Those of the nodes that run for the gradients of ``inputs``, tensors or edges: the engine
    skips the others, and waits for no stream of theirs."""
    edges = [each.grad_fn if isinstance(each, torch.Tensor) else each.node for each in inputs]
    leaves = {id(each) for each in inputs if isinstance(each, torch.Tensor)}
    wanted = {
        *(node for node in edges if node is not None),
        *(node for node in nodes if id(getattr(node, "variable", None)) in leaves),
    }
    callers = collections.defaultdict(list)
    for node in nodes:
        for called, _ in node.next_functions:
            callers[called].append(node)
    found, ahead = set(wanted), list(wanted)
    while ahead:
        new = [caller for caller in callers[ahead.pop()] if caller not in found]
        found.update(new)
        ahead += new
    return [node for node in nodes if node in found]


def _why_refused(outputs: Iterable[torch.Tensor], inputs: Sequence[Any]) -> tuple[str, str] | None:
    """Why their backward is refused, and the fix; None if it is not."""
    nodes = list(nodes_behind(tensor.grad_fn for tensor in outputs))
    if not any(_HELD in node.metadata for node in nodes):
        return None
    running = _leading_to(inputs, nodes) if inputs else nodes
    result = next(filter(None, (node.metadata.get(_COMPUTED) for node in running)), None)
    if result is None:
        return next(filter(None, (node.metadata.get(_HELD) for node in running)), None)
    return (
        "backward would make the default stream wait for the capture (906): it reaches the "
        f"forward of {result}, which ran on the default stream before the capture",
        f"compute {result} in the captured code, so that each replay computes it anew",
    )


def mark_held(names: Callable[[], dict[int, str]]) -> None:
    """Mark the nodes that are alive when a capture of a script begins, and that were made on the
    default stream: a result keeps them, or a hook. ``names``: of tensors, by identity."""
    if not _marks:
        return  # It takes long to go through all objects of Python.
    named = names()
    with unintercepted(), no_torch_function(), torch.enable_grad():
        tensors = [*_following_grad()]
        for result in tensors:
            name = named.get(id(result))
            text = "a result" if name is None else f"`{name}`"
            for node in _accumulating([result]) if result.grad_fn is not None else ():
                if node.metadata.get(_IS_OF_DEFAULT):
                    node.metadata.setdefault(_HELD, _held_by(text))
                    _note_computed(result, text)
        for leaf in tensors:
            for node in _accumulating([_use_of(leaf)]) if leaf.grad_fn is None else ():
                if node.metadata.get(_IS_OF_DEFAULT):
                    node.metadata.setdefault(_HELD, _kept(named.get(id(leaf))))


def _following_grad() -> Iterator[torch.Tensor]:
    """The tensors of Python on the device whose gradients autograd follows."""
    for each in gc.get_objects():
        is_tensor = type(each) in (torch.Tensor, torch.nn.Parameter)
        if is_tensor and each.requires_grad and not on_host(each):
            yield each


@contextlib.contextmanager
def refused(model: DeviceModel, entry: Frame | None) -> Iterator[None]:
    """While entered, a captured backward that reaches a marked node is refused: at ``entry``, or
    at the line that calls it."""

    def run(original: Callable[..., Any], outputs: Any, *args: Any, **kwargs: Any) -> Any:
        inputs = args[_INPUTS] if len(args) > _INPUTS else ()
        is_judged = model.capturing and not model.overrides_stale_streams
        why = _why_refused(tensors_in(outputs), inputs) if is_judged else None
        if why is not None:
            frames = () if entry is None else (entry,)
            model.report(ACCUMULATE_GRAD_DEFAULT_STREAM, why[0], frames, fix=why[1])
        return call_user(original, outputs, *args, **kwargs)

    def override(original: Callable[..., Any], enabled: bool) -> None:
        call_user(original, enabled)
        model.overrides_stale_streams = enabled

    with Patches() as patches:
        patches.wrap(*BACKWARD, run)
        if hasattr(torch.autograd.graph, _OVERRIDE):
            patches.wrap(torch.autograd.graph, _OVERRIDE, override)
        yield


def _accumulating(tensors: Iterable[torch.Tensor]) -> Iterator[Any]:
    """The ``AccumulateGrad`` nodes behind tensors."""
    nodes = nodes_behind(tensor.grad_fn for tensor in tensors)
    return (node for node in nodes if hasattr(node, "variable"))
