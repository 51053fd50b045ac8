"""Whether a call gives a function of PyTorch a tensor where that takes a number."""

from __future__ import annotations

import ast
import builtins
import types
from typing import Any

import torch

from cgtool.observe.frames import Site, locals_of, position_of
from cgtool.observe.lookup import MISSING, attribute_of
from cgtool.observe.source import nodes_around
from cgtool.observe.tensors import tensors_in
from cgtool.torch_compat.private import schema_of

_CONVERSIONS = ("item", "tolist", "numpy", "tensor", "as_tensor", "asarray", "scalar_tensor")
"""Functions of PyTorch that are there to read values, or have a rule of their own."""
_NAMESPACES = (torch, torch.nn.functional, torch.linalg, torch.special, torch.fft)
"""Where PyTorch has functions that compute."""
_NUMBERS = ("int", "float", "number")
"""Parts of the types of parameters, as in `Optional[number]`."""


def takes_numbers(call: ast.Call) -> bool:
    """Whether it calls a function of PyTorch that computes, which is written in C++: one in Python
    has a frame."""
    name = str(getattr(call.func, "attr", None) or getattr(call.func, "id", ""))
    is_method = isinstance(call.func, ast.Attribute)
    if name in _CONVERSIONS or (not is_method and hasattr(builtins, name)):
        return False
    owners = (torch.Tensor, *_NAMESPACES) if is_method else _NAMESPACES
    return any(callable(getattr(owner, name, None)) for owner in owners)


def goes_to_an_op(site: Site) -> bool:
    """Whether what an expression returns, or a method of it, is an argument of a function of
    PyTorch that computes."""
    inner: ast.AST | None = None
    for node in nodes_around(position_of(site)):
        is_method = isinstance(node, ast.Call) and node.func is inner
        if not is_method and not isinstance(node, ast.Attribute | ast.Starred):
            return isinstance(node, ast.Call) and takes_numbers(node)
        inner = node
    return False


def may_get_tensor_for_number(call: ast.Call, frame: types.FrameType) -> bool:
    """Whether a call in the code of a frame may give a function of PyTorch a tensor where it takes
    a number; true if its parameters are unknown."""
    values = {**frame.f_globals, **locals_of(frame)}
    names, is_method = _called(call.func, values)
    op = next((op for name in names if (op := getattr(torch.ops.aten, name, None))), None)
    is_unpacked = any(isinstance(each, ast.Starred) for each in call.args) or any(
        each.arg is None for each in call.keywords
    )
    if op is None or is_unpacked:
        return True
    given: dict[int | str | None, ast.expr] = {
        **{place + is_method: node for place, node in enumerate(call.args)},
        **{each.arg: each.value for each in call.keywords},
    }
    return any(
        _may_be_tensor(node, values)
        for overload in op.overloads()
        for place, parameter in enumerate(schema_of(getattr(op, overload)).arguments)
        if any(part in str(parameter.real_type) for part in _NUMBERS)
        if (node := given.get(place, given.get(parameter.name))) is not None
    )


def _called(function: ast.expr, values: dict[str, Any]) -> tuple[list[str], bool]:
    """What the op may be called, and whether the function is a method of a tensor."""
    if not isinstance(function, ast.Attribute):
        return [ast.unparse(function)], False
    owner = _value_of(function.value, values)
    if not isinstance(owner, types.ModuleType):
        return [function.attr], True
    namespace = owner.__name__.rpartition(".")[2]
    return [f"{namespace}_{function.attr}", function.attr], False


def _may_be_tensor(node: ast.expr, values: dict[str, Any]) -> bool:
    """Whether an argument may be a tensor, or have one in it."""
    if isinstance(node, ast.Tuple | ast.List):
        return any(_may_be_tensor(each, values) for each in node.elts)
    if isinstance(node, ast.UnaryOp):
        return _may_be_tensor(node.operand, values)
    value = _value_of(node, values)
    return value is MISSING or next(tensors_in(value), None) is not None


def _value_of(node: ast.expr, values: dict[str, Any]) -> Any:
    """Of a constant, or a name with its attributes, without running the user's code."""
    match node:
        case ast.Constant(value):
            return value
        case ast.Name(name):
            return values.get(name, MISSING)
        case ast.Attribute(inner, name):
            owner = _value_of(inner, values)
            return MISSING if owner is MISSING else attribute_of(owner, name)
    return MISSING
