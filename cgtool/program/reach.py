"""Objects that the user's code can reach: two walks of steps (``program.inside``).

``reach`` walks a few steps and stops at modules, optimizers, tensors and generators: what a summary
names, close to the function. ``Reachable`` walks as far as it goes, because a value that it misses
is not restored between two runs that must begin in the same state.
"""

from __future__ import annotations

import contextlib
import random
import types
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch

from cgtool.observe.tensors import whole_or_parts
from cgtool.program.inside import Named, inside, is_data, is_of_objects
from cgtool.program.objects import attribute, is_a
from cgtool.program.places import Place


class Reachable:
    """Everything that can be reached from objects, breadth first."""

    def __init__(self, roots: Iterable[Named]) -> None:
        self.places: list[Place] = []
        """Places that hold objects and can be restored."""
        self.tensors: dict[int, tuple[str, torch.Tensor]] = {}
        """By identity: the first path to it."""
        self.random_sources: list[Any] = []
        """Random generators of PyTorch, Python and NumPy."""
        self.arrays: list[Any] = []
        self.objects: dict[int, Named] = {}
        """By identity: all of them, each with the first path to it."""
        waiting = deque(roots)
        while waiting:
            path, value = waiting.popleft()
            if not is_data(value) and id(value) not in self.objects:
                self.objects[id(value)] = path, value
                if not self._record(path, value):
                    waiting.extend(inside(path, value, self.places))

    def layout(self) -> Callable[[], None]:
        """Record which objects are in which places; returns what restores them."""
        layout = [(place, place.items()) for place in self.places]

        def restore() -> None:
            for place, items in layout:
                place.restore(items)

        return restore

    def _record(self, path: str, value: Any) -> bool:
        """Keep what has contents of its own; True if there is nothing inside it."""
        module = type(value).__module__
        if isinstance(value, torch.Tensor):
            if any(part is value for _, part in whole_or_parts(value)):
                self.tensors[id(value)] = path, value
        elif isinstance(value, torch.Generator | random.Random) or module.startswith(
            "numpy.random"
        ):
            # Numbers of the system have no state, and that of a source of seeds is read-only.
            fixed = isinstance(value, random.SystemRandom) or type(value).__name__ == "SeedSequence"
            if not fixed:
                self.random_sources.append(value)
            return True
        elif module == "numpy" and hasattr(value, "tobytes") and hasattr(value, "flags"):
            # Scalars of NumPy have most attributes of arrays, and cannot be changed.
            if hasattr(value, "ctypes") and value.flags.writeable:
                self.arrays.append(value)
            return not is_of_objects(value)
        return False


# --- what is close


_STEPS = 3
"""The function, a helper function, and a container or an object in either."""


@dataclass
class Reached:
    """By the names in the user's code."""

    modules: dict[str, torch.nn.Module] = field(default_factory=dict)
    """Outermost owners only. ``{"": module}`` when the function is a module, or bound to one."""
    optimizers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    generators: dict[str, torch.Generator] = field(default_factory=dict)


def reach(function: Callable[..., Any]) -> Reached:
    """Objects that ``function`` can reach by name; one with two names has the first."""
    if is_a(function, torch.nn.Module):
        return Reached(modules={"": cast(torch.nn.Module, function)})
    reached = Reached()
    tables: tuple[tuple[Any, dict[str, Any]], ...] = (
        (torch.nn.Module, reached.modules),
        (torch.optim.Optimizer, reached.optimizers),
        (torch.Tensor, reached.tensors),
        (torch.Generator, reached.generators),
    )
    waiting: deque[tuple[str, Any, int]] = deque([("", function, _STEPS + 1)])
    call = getattr(type(function), "__call__", None)  # noqa: B004
    if isinstance(call, types.FunctionType):
        waiting.append(("", call, _STEPS + 1))
    seen: dict[int, Any] = {}
    while waiting:
        name, value, steps = waiting.popleft()
        if id(value) in seen or is_data(value):
            continue
        seen[id(value)] = value
        table = next((table for kind, table in tables if is_a(value, kind)), None)
        if table is not None:
            while name in table:
                name += "'"
            table[name] = value
        elif steps:
            # An object whose attributes raise has no usable names.
            with contextlib.suppress(Exception):
                wrapped = attribute(value, "__wrapped__")
                is_call = is_a(value, types.MethodType | partial)
                waiting.extend(
                    (inner, part, steps - (not is_call and part is not wrapped))
                    for inner, part in inside(name, value)
                )
    _leave_out_owned(reached)
    return reached


def _leave_out_owned(reached: Reached) -> None:
    """Modules of other modules, and tensors of modules."""
    inner = {
        id(child)
        for module in reached.modules.values()
        for child in module.modules()
        if child is not module
    }
    reached.modules = {
        name: module for name, module in reached.modules.items() if id(module) not in inner
    }
    owned = {
        id(tensor)
        for module in reached.modules.values()
        for tensor in (*module.parameters(), *module.buffers())
    }
    reached.tensors = {
        name: tensor for name, tensor in reached.tensors.items() if id(tensor) not in owned
    }
