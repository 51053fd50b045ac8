"""Threads that serve the code: one round of a loop for each thing that it gives them.

What such a thread computes is a part of the call that it serves, if it depends on nothing that the
thread keeps between its rounds. Only functions whose source shows this are taken as that; all other
threads may change what they write at any time (``HostReads.written_by_others``).
"""

from __future__ import annotations

import ast
import builtins
import math
from collections.abc import Iterator
from functools import cache
from types import CodeType, FrameType
from typing import Any

from cgtool.observe.frames import callers, frames_of_other_threads, is_internal, locals_of
from cgtool.observe.host_values import CONTAINERS, SHARED
from cgtool.observe.lookup import MISSING, resolve
from cgtool.observe.source import Functions, function_of, inner_nodes
from cgtool.observe.uses import name_chain

_WAITS = frozenset(("get", "wait"))
_GIVES = frozenset(("put", "set"))
_PURE = frozenset(
    getattr(builtins, name)
    for name in (
        "abs", "bool", "dict", "divmod", "enumerate", "float", "int", "isinstance", "len", "list",
        "max", "min", "pow", "print", "range", "reversed", "round", "set", "sorted", "str", "sum",
        "tuple", "zip",
    )
)  # fmt: skip


def serving(given: list[Any]) -> list[tuple[FrameType, list[Any]]]:
    """The functions of other threads that wait for one of the things in ``given`` before each
    round, each with the queues and events in which it leaves its answers."""
    numbers = set(map(id, given))
    found: list[tuple[FrameType, list[Any]]] = []
    for innermost in frames_of_other_threads().values() if numbers else ():
        users = [each for each in callers(innermost) if not is_internal(each.f_code)]
        frame = users[0] if len(users) == 1 else None
        loop = None if frame is None else _rounds_of(frame.f_code)
        if frame is None or loop is None:
            continue
        names = {**frame.f_globals, **locals_of(frame)}
        waits = _first_call(loop)
        if id(_owner(waits, names)) in numbers and _depends_on_nothing_else(loop, names):
            calls = [node for node in inner_nodes(loop) if isinstance(node, ast.Call)]
            owners = [_owner(call, names) for call in calls if _method(call) in _GIVES]
            found.append((frame, [each for each in owners if isinstance(each, SHARED)]))
    return found


@cache
def _loop_of(function: Functions) -> ast.While | None:
    """The loop of a function that is nothing but a loop, and what is set before it."""
    if isinstance(function, ast.Lambda) or not isinstance(function.body[-1], ast.While):
        return None
    loop, before = function.body[-1], function.body[:-1]
    is_plain = all(isinstance(node, ast.Assign | ast.AnnAssign | ast.Expr) for node in before)
    return loop if is_plain and not loop.orelse else None


def _rounds_of(code: CodeType) -> ast.While | None:
    """The loop of a function of a thread, if no local name takes a value from one round to the
    next."""
    function = function_of(code)
    loop = _loop_of(function) if function is not None else None
    if loop is None or _first_call(loop) is None:
        return None
    kinds = Functions | ast.Yield | ast.YieldFrom | ast.Await | ast.NamedExpr | ast.comprehension
    if any(isinstance(node, kinds) for node in ast.walk(loop)):
        return None
    own = {*code.co_varnames[code.co_argcount + code.co_kwonlyargcount :], *code.co_cellvars}
    known: set[str] = set()
    for statement in (ast.Expr(loop.test), *loop.body):
        names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
        stored = {node.id for node in names if isinstance(node.ctx, ast.Store)} & own
        loaded = {node.id for node in names if isinstance(node.ctx, ast.Load)} & own
        assigned = isinstance(statement, ast.Assign | ast.AnnAssign)
        if stored and not assigned:
            return None
        if loaded & (_stored_in(loop) - known):
            return None
        known |= stored
    return loop


def _stored_in(loop: ast.While) -> set[str]:
    nodes = (node for node in ast.walk(loop) if isinstance(node, ast.Name))
    return {node.id for node in nodes if isinstance(node.ctx, ast.Store)}


def _first_call(loop: ast.While) -> ast.Call | None:
    """The call without limits of time that each round begins with: ``requests.get()``."""
    parts: Iterator[ast.AST] = iter((loop.test, loop.body[0]))
    if isinstance(loop.test, ast.Constant) and loop.test.value:
        parts = iter((loop.body[0],))
    calls = (node for part in parts for node in ast.walk(part) if isinstance(node, ast.Call))
    waits = [call for call in calls if _method(call) in _WAITS]
    is_first = len(waits) == 1 and not waits[0].args and not waits[0].keywords
    return waits[0] if is_first else None


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _owner(call: ast.Call | None, names: dict[str, Any]) -> Any:
    """The object whose method is called."""
    function = call.func if call is not None else None
    return _value(function.value, names) if isinstance(function, ast.Attribute) else MISSING


def _value(node: ast.expr, names: dict[str, Any]) -> Any:
    chain = name_chain(node)
    if chain is None or chain[0] not in names:
        name = chain[0] if chain is not None and not chain[1] else ""
        return getattr(builtins, name, MISSING)
    return resolve(names[chain[0]], chain[1])


def _depends_on_nothing_else(loop: ast.While, names: dict[str, Any]) -> bool:
    """Whether all that a loop calls returns what it is given, or what is there by name."""
    for call in (node for node in inner_nodes(loop) if isinstance(node, ast.Call)):
        owner = _owner(call, names)
        is_method = isinstance(owner, (*CONTAINERS, *SHARED)) or owner is math
        function = MISSING if isinstance(call.func, ast.Attribute) else _value(call.func, names)
        if not is_method and not any(function is each for each in _PURE):
            return False
    return True
