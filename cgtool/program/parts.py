"""One callable of a workload: the modules that it runs and what its arguments freeze."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from cgtool.program.guarded_access import is_a, type_name
from cgtool.program.reach import reach
from cgtool.program.workload import Part

_SHOWN = 5


def make_part(
    name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: str
) -> tuple[Part, list[str]]:
    """The part, and the notes that its reader needs."""
    wanted = torch.device(device).type
    modules: dict[str, torch.nn.Module] = {}
    notes: list[str] = []
    for key, module in reach(function).modules.items():
        # A module that is found by name may have another purpose. If the function does run it,
        # the warm-up fails and says so with the line.
        if key and any(one.device.type != wanted for one in module.parameters()):
            notes.append(f"{name} can reach the module {key}, which is not on {device}: left out")
        else:
            modules[key] = module
    named = [key for key in modules if key]
    if named:
        many = "s" if len(named) > 1 else ""
        notes.append(
            f"{name} runs the module{many} {', '.join(named)}: found by name in what it closes "
            "over, is bound to, or reads from its globals"
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
    """``scale (float)``: the arguments, nested ones too, that a replay cannot see change."""
    return [
        f"{key}{pytree.keystr(path)} ({type_name(leaf)})"
        for key, value in (*enumerate(args), *kwargs.items())
        for path, leaf in pytree.tree_flatten_with_path(value)[0]
        if leaf is not None and not is_a(leaf, torch.Tensor)
    ]
