"""Modules, optimizers, the environment and settings of PyTorch, as a capture has read them."""

from __future__ import annotations

import contextlib
import itertools
import os
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from inspect import getattr_static
from operator import attrgetter
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized
from torch.optim import Optimizer

from cgtool.detectors.preflight import filled_rate, frozen_by
from cgtool.detectors.script.frozen import Frozen
from cgtool.detectors.script.inputs import ModuleChanges
from cgtool.findings import code
from cgtool.model.capture import Frames
from cgtool.model.finding import ERROR
from cgtool.observe.call_sites import constructed_at
from cgtool.observe.frames import frames_of
from cgtool.observe.lookup import (
    MISSING,
    Identity,
    attribute_of,
    content_of,
    undecorated,
)
from cgtool.observe.script.changes import Target
from cgtool.observe.script.names import Stack
from cgtool.observe.script.state import WatchedGraph
from cgtool.observe.source import is_condition, names_in
from cgtool.observe.tensors import keys_in
from cgtool.torch_compat.private import (
    BACKWARD_HOOKS,
    FORWARD_HOOKS,
    TENSOR_HOOKS,
    Dropout,
    children_of,
)
from cgtool.torch_compat.weak import Weak

CHILD_MODULE_HOOKS_CAPTURED = code("child-module-hooks-captured")
CONTROL_FLOW_FROZEN = code("control-flow-frozen")
PYTHON_SCALAR_FROZEN = code("python-scalar-frozen")
PARAMETER_REBOUND = code("parameter-rebound")
PARAMETERS_ADDED_OR_REMOVED = code("parameters-added-or-removed")
TRAIN_EVAL_TOGGLE = code("train-eval-toggle")


def _of(thing: Any, read: Callable[[Any], Hashable]) -> tuple[Hashable, Callable[[Stack], Any]]:
    """What ``read`` returns for an object, and a function that reads it again while it lives."""
    reference = Weak(thing)

    def read_again(_stack: Stack) -> Any:
        alive = reference()
        return MISSING if alive is None else read(alive)

    return read(thing), read_again


# Modules.

_LAYERS_AGAIN = (
    "keep the layer and change its tensors in place, with spare rows for what grows, or capture "
    "again after the change"
)


def parts(
    module: torch.nn.Module,
    name: str,
    read_at: Frames,
    replacing: Mapping[int, CodeType],
    *,
    backward: bool,
) -> Iterator[Frozen]:
    """Layers, ``forward`` and hooks of a module that ran in a capture, or is a part of one.

    ``name``: in its parent; empty for a module that has none. ``replacing``: as of ``Ran``.
    """
    kind = type(module).__name__
    other_layers = (
        f"the layers of {kind} have changed since the capture; the replay runs the old ones"
    )

    def target_of(layer: str) -> tuple[Target, ...]:
        return (*((("item", int(layer)),) if layer.isdigit() else ()), ("attribute", layer))

    # A replaced layer is reported before a changed number of layers.
    for layer, child in children_of(module).items():
        identity = _of(module, partial(_identity_of_layer, layer))
        targets = (*target_of(layer), ("attribute", name))
        tensors = frozenset() if child is None else keys_in(child)
        changed = Frozen(
            CONTROL_FLOW_FROZEN,
            other_layers,
            *identity,
            read_at,
            targets=targets,
            tensors=tensors,
            fix=_LAYERS_AGAIN,
        )
        removed = _parametrized(module, layer)
        if removed:
            names = " and ".join(f"`{each}`" for each in removed)
            changed = changed._replace(
                code=PARAMETER_REBOUND,
                reason=f"the parametrization of {names} was removed after the capture; the replay "
                "still computes it, from its own parameters",
                targets=(("call", "remove_parametrizations"), *targets),
                fix="remove parametrizations before the capture, or capture again",
            )
        yield changed
    if isinstance(module, torch.nn.ModuleList | torch.nn.Sequential | torch.nn.ModuleDict):
        # Children that others get later do not run; a container runs all that it has.
        layers = _of(module, lambda module: len(children_of(module)))
        targets = (("attribute", name),)
        yield Frozen(
            CONTROL_FLOW_FROZEN,
            other_layers,
            *layers,
            read_at,
            "the number of layers",
            targets,
            fix=_LAYERS_AGAIN,
        )
    yield Frozen(
        CONTROL_FLOW_FROZEN,
        f"`forward` of {kind} was replaced after the capture; the replay runs the old one",
        *_of(module, _forward_of),
        read_at,
        targets=(("attribute", "forward"),),
    )
    tables = (*FORWARD_HOOKS, *(BACKWARD_HOOKS if backward else ()))
    yield from _hooks(module, tables, f"of {kind}", read_at, replacing, _ADDS_HOOK, _HOOK_AGAIN)


def _hooks(
    owner: Any,
    tables: tuple[str, ...],
    whose: str,
    read_at: Frames,
    replacing: Mapping[int, CodeType],
    adds: tuple[Target, ...],
    fix: str,
) -> Iterator[Frozen]:
    """Hooks of a module or a tensor. ``adds``: what a line calls that adds one."""
    known = _hooks_of(owner, tables)
    yield Frozen(
        CHILD_MODULE_HOOKS_CAPTURED,
        f"a hook {whose} was added after the capture; no replay runs it",
        *_of(owner, partial(_added_hooks, known, tables)),
        read_at,
        targets=adds,
        fix=fix,
    )
    # Of the others, the user may have what they computed from each replay.
    kept_codes = [replacing[hook.code] for hook in known.values() if hook.code in replacing]
    ran = {hook for hook in known.values() if hook.code in replacing}
    yield Frozen(
        CHILD_MODULE_HOOKS_CAPTURED,
        f"a hook {whose} that changes what it gets was removed after the capture; each replay "
        "repeats its ops",
        *_of(owner, partial(_remaining_hooks, ran, kept_codes, tables)),
        read_at,
        targets=_REMOVES_HOOK,
        may_end_with_block=True,
        subject=("hooks", Identity(owner)),
        fix=_HOOK_REMOVED,
    )


def _added_hooks(
    known: dict[Any, _Hook], tables: tuple[str, ...], owner: Any
) -> frozenset[Hashable]:
    """Keys of hooks that are new, and not put back."""
    now = _hooks_of(owner, tables)
    gone = [known[key] for key in known.keys() - now.keys()]
    return frozenset(key for key in now.keys() - known.keys() if now[key] not in gone)


def _remaining_hooks(
    ran: set[_Hook], _kept_codes: list[CodeType], tables: tuple[str, ...], owner: Any
) -> frozenset[_Hook]:
    """``_kept_codes``: so that no other code gets the id of one of them."""
    return frozenset(hook for hook in _hooks_of(owner, tables).values() if hook in ran)


def _identity_of_layer(layer: str, module: torch.nn.Module) -> Identity:
    return Identity(children_of(module).get(layer))


def _parametrized(module: torch.nn.Module, layer: str) -> list[str]:
    """The parameters that a layer computes, if it is one of those that PyTorch adds for that."""
    child = children_of(module).get(layer)
    if isinstance(child, ParametrizationList):
        return [layer]
    is_table = layer == "parametrizations" and is_parametrized(module)
    return list(children_of(child)) if is_table and child is not None else []


def _forward_of(module: torch.nn.Module) -> Identity:
    own = module.__dict__.get("forward")
    kind = getattr_static(type(module), "forward", None)
    return Identity(kind if own is None else getattr(own, "__func__", own))


class _Hook(NamedTuple):
    """What a hook runs: equal for another function of the same code with the same values."""

    code: int
    """Its id; that of the hook itself if it runs no code of Python."""
    values: tuple[Hashable, ...]
    """What it is bound to, and the variables of functions around it."""


def _hooks_of(owner: Any, tables: tuple[str, ...]) -> dict[Any, _Hook]:
    """By the name of the table and the key, which PyTorch counts up."""
    return {
        (name, key): _hook(hook)
        for name in tables
        for key, hook in (getattr(owner, name, None) or {}).items()
    }


def _hook(hook: Any) -> _Hook:
    values: list[Any] = []
    while isinstance(hook, partial):
        values += [*hook.args, *itertools.chain(*hook.keywords.items())]
        hook = hook.func
    function = undecorated(hook)
    if function is None:
        function = undecorated(attribute_of(hook, "__call__"))
        values.append(hook)
    values.append(getattr(hook, "__self__", None))
    for cell in () if function is None else (function.__closure__ or ()):
        values.append(content_of(cell)())
    number = id(hook) if function is None else id(function.__code__)
    simple = (bool, int, float, str, type(None))
    return _Hook(number, tuple(x if type(x) in simple else Identity(x) for x in values))


_ADDS_HOOK: tuple[Target, ...] = tuple(
    ("call", f"register_{name}_hook")
    for name in ("forward", "forward_pre", "full_backward", "full_backward_pre")
)


def mode(
    module: torch.nn.Module, read_at: Frames, graph: WatchedGraph, toggled: ModuleChanges
) -> Iterator[Frozen]:
    """``train()`` or ``eval()`` of a module that runs in a capture, if it makes a difference."""
    if _depends_on_mode(module):
        reference = weakref.ref(module)

        def toggled_at() -> Frames:
            alive = reference()
            return () if alive is None else toggled.since(alive, graph)

        name = "train()" if module.training else "eval()"
        yield Frozen(
            TRAIN_EVAL_TOGGLE,
            f"{type(module).__name__} was captured in `{name}`; the replay stays in that mode",
            *_of(module, lambda module: module.training),
            read_at,
            changed_at=toggled_at,
            chooses_graph=False,
            subject=reference,
        )


def _depends_on_mode(module: torch.nn.Module) -> bool:
    """True if ``forward`` of a module looks at ``training``, and it makes a difference."""
    if isinstance(module, Dropout):
        return bool(module.p > 0)
    # Not `type(module).forward`, which TorchScript cannot answer.
    forward = getattr(getattr_static(type(module), "forward", None), "__code__", None)
    if forward is None:
        return False
    if "training" in names_in(forward):
        return True
    # Recurrent modules pass it to their kernel only where they have dropout.
    return isinstance(module, torch.nn.RNNBase) and module.dropout > 0


# Optimizers.

_CONSTANT_MOMENTUM = (
    "keep it constant (`cycle_momentum=False` of `OneCycleLR` and `CyclicLR`), or capture a graph "
    "for each value"
)
_FIXES_OF_NUMBERS = {
    **dict.fromkeys(("betas", "momentum"), _CONSTANT_MOMENTUM),
    "weight_decay": "capture a graph for each value, or decay the parameters in code of your own, "
    "by a tensor: the optimizer compares `weight_decay` with 0 on the host",
}
"""Of an optimizer, but for its learning rate."""
_CAPTURE_AGAIN = (
    "add, remove, freeze and unfreeze parameters before the capture, or capture again afterwards"
)


def hyperparameters(optimizer: Optimizer, read_at: Frames) -> Iterator[Frozen]:
    """The numbers of an optimizer that steps in a capture."""
    kind = type(optimizer).__name__
    for index, group in enumerate(optimizer.param_groups):
        for name, value in group.items():
            if type(value) not in (int, float, bool, tuple):
                continue
            before, read = _of(optimizer, partial(_hyperparameter, index, name))
            # A learning rate belongs in a tensor: the fix is where the optimizer is constructed.
            is_rate = name == "lr"
            place = constructed_at(optimizer) if is_rate else ()
            yield Frozen(
                frozen_by(optimizer) if is_rate else PYTHON_SCALAR_FROZEN,
                f"`{name}` of {kind} has changed since the capture; the replay uses the old value",
                before,
                read,
                place or read_at,
                name,
                () if is_rate else (("item", name),),
                severity=ERROR,
                chooses_graph=False,
                used_at=read_at if place else (),
                fix=filled_rate(optimizer, before, (*place, *read_at))
                if is_rate
                else _FIXES_OF_NUMBERS.get(name)
                or f"capture a graph for each value, or capture again when it has changed: {kind} "
                f"reads `{name}` on the host",
            )


def stepped(optimizer: Optimizer, read_at: Frames) -> Frozen:
    """The parameters of an optimizer that steps in a capture."""
    return Frozen(
        PARAMETERS_ADDED_OR_REMOVED,
        f"the parameters of {type(optimizer).__name__} have changed since the capture; the replay "
        "still updates the old ones",
        *_of(optimizer, _parameters_of),
        read_at,
        targets=(("call", "add_param_group"), ("item", "params"), ("attribute", "param_groups")),
        fix=_CAPTURE_AGAIN,
    )


def _parameters_of(optimizer: Optimizer) -> Hashable:
    groups = optimizer.param_groups
    return tuple(Identity(parameter) for group in groups for parameter in group["params"])


def _hyperparameter(index: int, name: str, optimizer: Optimizer) -> Any:
    value = optimizer.param_groups[index].get(name, MISSING)
    return MISSING if isinstance(value, torch.Tensor) else value


def flags(graph: WatchedGraph) -> Iterator[Frozen]:
    """``requires_grad`` of the parameters that a graph with a backward reads, at its first replay.
    A flag that is set only during the capture does not matter to replays."""
    if not any(call.autograd_node for call in graph.record.calls):
        return
    for use in graph.external.values():
        parameter = use.tensor()
        if isinstance(parameter, torch.nn.Parameter):
            before, read = _of(parameter, attrgetter("requires_grad"))
            yield Frozen(
                PARAMETERS_ADDED_OR_REMOVED,
                "`requires_grad` of a parameter has changed since the first replay; the captured "
                "backward computes the same gradients as before",
                before,
                read,
                frames_of(use.call.chain),
                "requires_grad",
                (("call", "requires_grad_"), ("attribute", "requires_grad")),
                fix=_CAPTURE_AGAIN,
            )


def tensor_hooks(graph: WatchedGraph, replacing: Mapping[int, CodeType]) -> Iterator[Frozen]:
    """Hooks of the parameters that a graph with a backward reads, but not of a graphed callable,
    whose gradients autograd accumulates after the replay."""
    if graph.callable is not None or not any(call.autograd_node for call in graph.record.calls):
        return
    for use in graph.external.values():
        parameter = use.tensor()
        if isinstance(parameter, torch.nn.Parameter) and parameter.requires_grad:
            yield from _hooks(
                parameter,
                TENSOR_HOOKS,
                "of a parameter",
                frames_of(use.call.chain),
                replacing,
                _ADDS_TENSOR_HOOK,
                _HOOK_FIRST,
            )


_ADDS_TENSOR_HOOK: tuple[Target, ...] = (
    ("call", "register_hook"),
    ("call", "register_post_accumulate_grad_hook"),
)
_REMOVES_HOOK: tuple[Target, ...] = (("call", "remove"),)
_HOOK_AGAIN = (
    "capture again after adding it, so that the graph has its tensor ops; what else it does, do "
    "after each replay"
)
_HOOK_REMOVED = (
    "capture again after removing it, or capture one graph with the hook and one without, and "
    "choose between them"
)
_HOOK_FIRST = (
    "register it before the capture, with tensor ops alone, which the graph then repeats; or call "
    "it after each replay"
)


# The environment, and settings of PyTorch.


def variable(
    name: str, value: str | None, read_at: Frames, written: Mapping[str, Frames]
) -> Frozen:
    """An environment variable that a capture reads. ``written``: where it sets some."""
    is_tested = is_condition(read_at[0].file, read_at[0].line)
    return Frozen(
        CONTROL_FLOW_FROZEN if is_tested else PYTHON_SCALAR_FROZEN,
        f"the environment variable {name} has changed since the capture; the replay uses the old "
        "value",
        value,
        lambda _stack: os.environ.get(name),
        read_at,
        name,
        (("item", name),),
        changed_at=lambda: written.get(name, ()),
    )


_MATMULS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addmv", "aten::mv")
_CONVOLUTIONS = ("aten::convolution", "aten::cudnn_", "aten::_cudnn_", "aten::_slow_conv")
_ATTENTION = ("aten::_scaled_dot_product",)
_SUMS = (
    "aten::index_add", "aten::index_put", "aten::_index_put_impl", "aten::scatter_add",
    "aten::scatter_reduce", "aten::index_reduce", "aten::cumsum", "aten::embedding_dense_backward",
    "aten::histc", "aten::bincount", "aten::put",
)  # fmt: skip
"""Ops with an algorithm that is deterministic, and one that is not."""
_SETTINGS: tuple[tuple[str, tuple[str, ...], tuple[Target, ...]], ...] = (
    (
        "torch.get_float32_matmul_precision()",
        _MATMULS,
        (("attribute", "allow_tf32"), ("call", "set_float32_matmul_precision")),
    ),
    *(
        (f"torch.backends.cuda.matmul.{name}", _MATMULS, (("attribute", name),))
        for name in (
            "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction",
            "fp32_precision",
        )
    ),
    *(
        (f"torch.backends.cudnn.{name}", _CONVOLUTIONS, (("attribute", name),))
        for name in ("allow_tf32", "benchmark", "deterministic", "enabled")
    ),
    *(
        (f"torch.backends.cuda.{name}_sdp_enabled()", _ATTENTION, (("call", f"enable_{name}_sdp"),))
        for name in ("flash", "mem_efficient", "math")
    ),
    (
        "torch.are_deterministic_algorithms_enabled()",
        _SUMS,
        (("call", "use_deterministic_algorithms"),),
    ),
)  # fmt: skip
"""Name, ops whose kernels depend on it, and what a line that changes it does."""


def autocast(graph: WatchedGraph) -> Iterator[Frozen]:
    """Autocast around a replay, where neither the captured code nor what captured it used it."""
    is_cast = any(use.layout.dtype == torch.float32 for use in graph.external.values())
    if is_cast and graph.has_op(*_MATMULS, *_CONVOLUTIONS) and not _autocasts():
        yield Frozen(
            CONTROL_FLOW_FROZEN,
            "autocast changes nothing in a replay, which computes with the dtypes of the capture",
            False,
            _autocasts,
            (),
            "torch.is_autocast_enabled('cuda')",
            (("call", "autocast"),),
            fix="capture under the same `torch.autocast(..., cache_enabled=False)`",
        )


def _autocasts(_stack: Stack | None = None) -> bool:
    return torch.is_autocast_enabled("cuda")


def settings(graph: WatchedGraph) -> Iterator[Frozen]:
    """Settings of PyTorch that decide which kernels the captured ops launch.

    Only what a line of the script changes after the capture counts: a setting that a ``with``
    statement around the capture has changed is another one at the replay on purpose.
    """
    for name, ops, targets in _SETTINGS:
        if graph.has_op(*ops):
            read = partial(_setting, name)
            yield Frozen(
                CONTROL_FLOW_FROZEN,
                f"`{name}` has changed since the capture; the replay launches the old kernels",
                read(),
                read,
                (),
                name,
                targets,
                fix="change the setting before the capture, or capture again",
            )


def _setting(name: str, _stack: Stack | None = None) -> Any:
    path = name.removeprefix("torch.").removesuffix("()")
    # PyTorch raises if a script mixes the old and the new names of a setting.
    with contextlib.suppress(RuntimeError, AttributeError):
        value = attrgetter(path)(torch)
        return value() if name.endswith("()") else value
    return None
