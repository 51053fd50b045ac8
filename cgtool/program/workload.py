"""What an entry point turned out to be: callables with their sample arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from cgtool.model.capture import Frame
from cgtool.program.guarded_access import is_a, type_name
from cgtool.program.reach import reach
from cgtool.torch_compat.private import pytree


@dataclass(frozen=True)
class Part:
    """One callable of a workload and the arguments to capture it with."""

    name: str
    """How the user would call it: ``TransformerBlock``, ``generator``, ``train_step``."""
    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    modules: Mapping[str, torch.nn.Module] = field(default_factory=dict)
    """Root modules that the callable runs, by path prefix: ``{"": model}`` when the callable is a
    module, ``{"net": net, "head": head}`` for modules that a function closes over."""
    frames: tuple[Frame, ...] = ()
    """Where the entry point is defined: for failures that no line of the user's is in."""

    def parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Named parameters that require grad, each once, in registration order."""
        seen: dict[int, tuple[str, torch.nn.Parameter]] = {}
        for prefix, module in self.modules.items():
            for name, parameter in module.named_parameters():
                if parameter.requires_grad and id(parameter) not in seen:
                    seen[id(parameter)] = (f"{prefix}.{name}" if prefix else name, parameter)
        return list(seen.values())


@dataclass(frozen=True)
class Workload:
    """Everything that the backends need to know; built by ``cgtool.program.load``."""

    spec: str
    kind: str
    """``callable`` (one, forward and maybe backward), ``callables`` (several that share a pool,
    forward in order, backward in reverse) or ``step`` (captured as it is, no arguments)."""
    parts: tuple[Part, ...]
    file: str | None = None
    line: int | None = None
    notes: tuple[str, ...] = ()
    """What the reader must know: which globals were taken, where inputs came from."""

    def entry_frame(self) -> Frame | None:
        """Where the entry point is defined."""
        if self.file is None:
            return None
        return Frame(self.file, self.line or 1, self.spec.rpartition(":")[2])


_SHOWN = 5


def make_part(
    name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: str
) -> tuple[Part, list[str]]:
    """The part with the modules that it reaches, and notes on these and on frozen arguments."""
    device_type = torch.device(device).type
    modules: dict[str, torch.nn.Module] = {}
    notes: list[str] = []
    for key, module in reach(function).modules.items():
        # A module on another device may have another purpose. If the function does run it, the
        # warm-up fails at its line.
        if key and any(each.device.type != device_type for each in module.parameters()):
            notes.append(f"{name} can reach the module {key}, which is not on {device}: left out")
        else:
            modules[key] = module
    named = [key for key in modules if key]
    if named:
        many = "s" if len(named) > 1 else ""
        notes.append(
            f"{name} runs the module{many} {', '.join(named)}: found in its closure, its object or "
            "its globals"
        )
    frozen = _frozen(args, kwargs)
    if frozen:
        more = f" and {len(frozen) - _SHOWN} more" if len(frozen) > _SHOWN else ""
        notes.append(
            f"{name}: the graph keeps the values of the arguments that are not tensors: "
            f"{', '.join(frozen[:_SHOWN])}{more}"
        )
    return Part(name, function, args, kwargs, modules), notes


def _frozen(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """``scale (float)``: arguments, nested ones too, whose later values a replay ignores."""
    return [
        f"{key}{pytree.keystr(path)} ({type_name(leaf)})"
        for key, value in (*enumerate(args), *kwargs.items())
        for path, leaf in pytree.tree_flatten_with_path(value)[0]
        if leaf is not None and not is_a(leaf, torch.Tensor)
    ]
