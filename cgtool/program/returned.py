"""What a factory returned: which form it has, and whether the form is filled as it must be."""

from __future__ import annotations

from typing import Any

import torch

from cgtool.program import callables
from cgtool.program.guarded_access import is_a, type_name
from cgtool.program.surface import tensors_in
from cgtool.torch_compat.private import pytree

Call = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""A callable, its arguments, its keyword arguments."""


class Nonsense(Exception):
    """The form is known, what fills it is not usable. ``what`` continues the ENTRY's text."""

    def __init__(self, what: str, *, why: str | None = None, fix: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.fix = fix


def kind(value: Any) -> str:
    """``a Tensor``, ``an int``."""
    name = type_name(value)
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def is_result(value: Any) -> bool:
    """True for what a step returns: tensors, None, or containers with nothing to call in them."""
    leaves = pytree.tree_leaves(value)
    if any(callable(one) and not is_a(one, torch.Tensor) for one in leaves):
        return False
    return bool(tensors_in(value)) or all(one is None for one in leaves)


def holds_several(made: Any) -> bool:
    """True for ``((f1, f2, ...), anything)``."""
    if not is_a(made, tuple | list) or len(made) not in (2, 3):
        return False
    first = made[0]
    return is_a(first, tuple | list) and bool(first) and all(callable(one) for one in first)


def holds_one(made: Any) -> bool:
    """True for ``(callable, anything that is not)`` and with keyword arguments behind."""
    return (
        is_a(made, tuple | list)
        and len(made) in (2, 3)
        and callable(made[0])
        and not is_a(made[0], type)
        and not (callable(made[1]) and not is_a(made[1], torch.Tensor))
    )


def _runs(function: Any, prefix: str) -> None:
    wrong = callables.cannot_run(function)
    if wrong:
        raise Nonsense(f"{prefix} {wrong}, which cgtool does not run")


def one(made: Any) -> Call:
    """Read ``(callable, args)`` or ``(callable, args, kwargs)``. Raises Nonsense."""
    function, args, *rest = made
    kwargs = rest[0] if rest else {}
    _runs(function, " returned")
    if is_a(args, torch.Tensor):
        args = (args,)
    if not is_a(args, tuple | list):
        named = "return (callable, (), {'name': value})"
        raise Nonsense(
            f" returned arguments of type {type_name(args)}",
            fix=named if is_a(args, dict) else "return (callable, (argument, ...))",
        )
    if not is_a(kwargs, dict) or not all(is_a(key, str) for key in kwargs):
        raise Nonsense(
            f" returned keyword arguments of type {type_name(kwargs)}",
            fix="return (callable, args, {'name': value})",
        )
    misfit = callables.misfit(function, tuple(args), kwargs)
    if misfit:
        name = callables.name_of(function)
        raise Nonsense(
            f" returned arguments that {name} does not take: {misfit}",
            why=f"it is {name}{callables.shown(function)}",
        )
    return function, tuple(args), kwargs


def several(made: Any, factory: Any) -> list[tuple[str, Any, tuple[torch.Tensor, ...]]]:
    """Read ``((f1, ...), (args1, ...))`` to (name, callable, arguments). Raises Nonsense.

    The rules are those of ``torch.cuda.make_graphed_callables``.
    """
    functions, arguments = made[0], made[1]
    if len(made) != 2 or not is_a(arguments, tuple | list):
        raise Nonsense(
            " returned several callables without their arguments alone",
            fix="return ((f1, f2, ...), (args1, args2, ...)), without keyword arguments",
        )
    if len(functions) != len(arguments):
        raise Nonsense(
            f" returned {len(functions)} callables and {len(arguments)} tuples of arguments"
        )
    written = callables.returned_names(factory, len(functions))
    names = written or callables.unique([callables.name_of(function) for function in functions])
    found = []
    for name, function, given in zip(names, functions, arguments, strict=True):
        args = (given,) if is_a(given, torch.Tensor) else given
        _check_shared(name, function, args)
        found.append((name, function, tuple(args)))
    return found


def _check_shared(name: str, function: Any, args: Any) -> None:
    _runs(function, f": {name} is")
    if not is_a(args, tuple | list):
        raise Nonsense(f": the arguments of {name} are {kind(args)}, not a tuple")
    for index, value in enumerate(args):
        if not is_a(value, torch.Tensor):
            raise Nonsense(
                f": argument {index} of {name} is {kind(value)}, not a tensor",
                why="callables that share a pool take tensors only, as "
                "torch.cuda.make_graphed_callables has it",
                fix="bind other values with functools.partial",
            )
    misfit = callables.misfit(function, tuple(args), {})
    if misfit:
        raise Nonsense(
            f": the arguments of {name} are not what it takes: {misfit}",
            why=f"it is {name}{callables.shown(function)}",
        )
