"""What names, calls and attributes say about where values come from, by themselves."""

from __future__ import annotations

import ast
import inspect
from types import CodeType

from cgtool.observe.flow_names import RECEIVERS, parameters_of
from cgtool.observe.flows import NOTHING, Source, Sources, beside, of_tensor
from cgtool.observe.host_values import ORDER
from cgtool.observe.uses import Step

SETTINGS = frozenset(("lr", "momentum", "betas", "weight_decay", "eps"))
MAKE_OBJECTS = frozenset(("dict", "enumerate", "list", "set", "tuple", "zip"))
"""Functions of Python that make an object of their arguments."""
MAY_COPY = frozenset(
    (
        "bfloat16", "bool", "contiguous", "cuda", "double", "float", "half", "int", "long", "to",
        "type",
    )
)  # fmt: skip
"""Methods of a tensor that run an op, or none if there is nothing to do."""
KINDS = frozenset(
    (
        "device", "dtype", "grad_fn", "is_cuda", "is_leaf", "itemsize", "layout", "ndim",
        "requires_grad",
    )
)  # fmt: skip
"""Attributes that say of a tensor, or an array, what does not depend on its elements. Shapes are
not among them: that of `host[host > 0]` does."""
ASK_KINDS = frozenset(
    (
        "callable", "data_ptr", "dim", "element_size", "get_device", "hasattr", "id", "is_complex",
        "is_contiguous", "is_floating_point", "is_pinned", "is_tensor", "isinstance", "type",
    )
)  # fmt: skip
"""Methods and functions that do."""
SET_MODES = frozenset(("train", "requires_grad_"))
"""Methods of modules and tensors whose argument says what later ops do."""
SIZES = frozenset(("size", "stride"))
"""Methods of a tensor that return numbers."""
RESUMING = frozenset(("send", "asend", "__next__", "__anext__"))
"""They let a suspended frame go on, whose state decides what they return, not what runs."""
SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
ADDS = frozenset(
    ("append", "extend", "insert", "appendleft", "update", "setdefault", "add", "write", "put")
)
"""Methods that add their arguments to a container: what is added does not depend on its items."""
_DEEPEST = 3
"""How many keys are followed, each into the container that the one before it leads to."""
ALL, OF_ANY_KEY = ("all",), ("any key",)
"""Parts of the contents of a container: all, and what is stored with a key that is not known."""


def key_of_steps(steps: tuple[Step, ...]) -> tuple[str, str | int] | None:
    """The part of the contents that has one key."""
    return ("key", steps[0][1]) if steps and steps[0][0] == "item" else None


def named_part(chain: tuple[str, tuple[Step, ...]]) -> str | None:
    """What stands for the items of one key behind a local name: ``state["step"]``."""
    root, steps = chain
    is_item = bool(steps) and steps[0][0] == "item" and isinstance(steps[0][1], str)
    return f"{root}[{steps[0][1]!r}]" if is_item else None


def of_items(sources: Sources, key: str) -> Sources:
    """For containers among the sources, only the items of one key, or the size."""

    def item(source: Source) -> Source:
        if source.kind == "state":
            return Source("item", (source, (key,)))
        if source.kind == "item" and len(source.key[1]) < _DEEPEST:
            state, path = source.key
            return Source("item", (state, (*path, key)))
        return source

    return frozenset(map(item, sources))


def in_order(sources: Sources) -> Sources:
    """For containers among the sources, only which items they have, in which order."""
    states = frozenset(each for each in sources if each.kind == "state")
    return sources - states | of_items(states, ORDER)


def passed_to(
    code: CodeType, arguments: list[Sources], named: dict[str | None, Sources]
) -> dict[str, Sources]:
    """What each parameter of a function gets from a call with these arguments."""
    parameters = code.co_varnames[: code.co_argcount]
    if parameters and parameters[0] in RECEIVERS:
        parameters = parameters[1:]
    by_name: dict[str | None, Sources] = {**dict(zip(parameters, arguments, strict=False)), **named}
    by_star = NOTHING.union(*arguments[len(parameters) :])
    return {name: by_name.get(name, by_star) for name in parameters_of(code)}


def given_by(source: Source, arguments: dict[str, Sources], receiver: Sources) -> Sources:
    """What stands for a source of a function in a call of it with these arguments."""
    match source.kind:
        case "parameter":
            return receiver if source.key in RECEIVERS else arguments[source.key]
        case "device":
            return of_tensor(given_by(source.key, arguments, receiver))
        case "beside":
            return beside(given_by(source.key, arguments, receiver))
    return frozenset((source,))


def items_written(node: ast.expr) -> dict[str, ast.expr] | None:
    """The items of a dict that is written out, if all of its keys are texts."""
    if not isinstance(node, ast.Dict):
        return None
    keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
    if not all(isinstance(key, str) for key in keys):
        return None
    return dict(zip(map(str, keys), node.values, strict=True))


def items_updated(call: ast.Call) -> dict[str, ast.expr] | None:
    """The items that ``table.update(...)`` writes, if they are written out."""
    if not (isinstance(call.func, ast.Attribute) and call.func.attr == "update"):
        return None
    items: dict[str, ast.expr] = {}
    for argument in call.args:
        written = items_written(argument)
        if written is None:
            return None
        items |= written
    for word in call.keywords:
        if word.arg is None:
            return None
        items[word.arg] = word.value
    return items


def is_special(code: CodeType, called: str | None) -> bool:
    """Whether a call has called a method of its argument: ``float(x)`` calls ``x.__float__()``."""
    name = code.co_name
    is_of_called = name in ("__call__", "__init__", "__new__", "__post_init__")
    return name != called and name.startswith("__") and name.endswith("__") and not is_of_called


def of_no_element(sources: Sources) -> Sources:
    """Without what a tensor on the host got from the device."""
    return frozenset(each for each in sources if each.kind not in ("copied", "read"))
