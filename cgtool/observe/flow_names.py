"""What the names and expressions of a function are, as far as its source and what ran say."""

from __future__ import annotations

import ast
import inspect
import itertools
import operator
from collections import Counter
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from threading import Event
from types import CodeType
from typing import Any

import torch

from cgtool.observe.flows import NOTHING, Flows, Source, Sources, is_in_place
from cgtool.observe.host_reads import Watched
from cgtool.observe.host_values import CONTAINERS, KEYS, NUMBERS, PRESENCE, random_state
from cgtool.observe.source import COMPREHENSIONS, Position, function_of, inner_nodes, names_in
from cgtool.observe.tensors import on_host
from cgtool.observe.uses import RETURN_NOTHING, Chain, Step, aliases_of, assigned_parts, name_chain

RECEIVERS = frozenset(("self", "cls", "ctx"))
"""Parameters whose attributes are state with keys of their own."""
_UNIT_DRAWS = frozenset(("random", "rand", "random_sample"))
"""Functions that draw from [0, 1); ``uniform`` does for these limits."""
_ARITHMETIC = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
_CONVERSIONS = frozenset(("item", "float"))
_PASSED = {
    ast.Eq: operator.gt, ast.NotEq: operator.gt, ast.LtE: operator.gt, ast.Gt: operator.gt,
    ast.Lt: operator.ge, ast.GtE: operator.ge,
}  # fmt: skip
"""By comparison: how a counter on the left must stand to the right side, so that no later count
changes the answer."""
_PASSED_BY = {
    **_PASSED,
    ast.Lt: operator.gt, ast.GtE: operator.gt, ast.Gt: operator.ge, ast.LtE: operator.ge,
}  # fmt: skip
"""The same for a counter on the right."""


def span_of(code: CodeType, node: ast.AST) -> Position:
    return (
        code.co_filename,
        getattr(node, "lineno", 0),
        getattr(node, "col_offset", 0),
        getattr(node, "end_lineno", None) or 0,
        getattr(node, "end_col_offset", None) or 0,
    )


def parameters_of(code: CodeType) -> tuple[str, ...]:
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[:count]


def _place(node: ast.expr) -> Chain | None:
    """What a value is kept as; ``kept.get("key")`` reads ``kept["key"]``."""
    if isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Attribute):
        is_get = node.func.attr == "get"
        node = ast.Subscript(node.func.value, node.args[0], ast.Load()) if is_get else node
    return name_chain(node)


def _resolved(chain: Chain, aliases: dict[str, Chain]) -> Chain:
    """A place by the name that a local name was taken from."""
    root, steps = chain
    if root not in aliases or not steps:
        return chain
    root, origin = aliases[root]
    return root, (*origin, *steps)


def _assigned(node: ast.AST, place: Chain, aliases: dict[str, Chain]) -> Iterator[ast.expr | None]:
    """What a statement assigns to a place, alone or as an item of a tuple; None if that is not
    written out."""
    for target in node.targets if isinstance(node, ast.Assign) else ():
        for part, value in assigned_parts(target, node.value):  # type: ignore[attr-defined]
            chain = name_chain(part)
            root, steps = ("", ()) if chain is None else _resolved(chain, aliases)
            if root != place[0] or steps != place[1][: len(steps)]:
                continue
            kept: ast.expr | None = value
            for _, key in place[1][len(steps) :]:
                items = kept.elts if isinstance(kept, ast.Tuple) else []
                kept = items[key] if isinstance(key, int) and key < len(items) else None
            yield kept


def _value_of(node: ast.expr, code: CodeType, function: ast.AST) -> ast.expr:
    """The expression behind a local name that is assigned once, and any other as it is."""
    stored, values = 0, []
    if isinstance(node, ast.Name) and node.id not in parameters_of(code):
        for inner in inner_nodes(function):
            if isinstance(inner, ast.Name) and inner.id == node.id:
                stored += isinstance(inner.ctx, ast.Store)
            elif isinstance(inner, ast.Assign) and name_chain(inner.targets[0]) == (node.id, ()):
                values.append(inner.value)
    return values[0] if stored == len(values) == 1 else node


def _is_partial(call: ast.Call) -> bool:
    name = getattr(call.func, "attr", None) or getattr(call.func, "id", "")
    return name == "partial" and bool(call.args)


def _partials_in(function: ast.AST) -> dict[str, ast.Call]:
    """The calls of ``functools.partial`` by the name that they, and nothing else, are assigned
    to."""
    nodes = list(inner_nodes(function))
    stored = Counter(
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    return {
        node.targets[0].id: node.value
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if isinstance(node.value, ast.Call) and _is_partial(node.value)
        if stored[node.targets[0].id] == 1
    }


def _shares_names(inner: CodeType, code: CodeType) -> bool:
    return inner is code or inner.co_name in COMPREHENSIONS


_RISING: dict[type[ast.operator], Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv,
}  # fmt: skip
"""Operators whose result rises with the left operand, if the right one is positive."""
_WITHOUT_TENSORS = frozenset(
    (
        "device",
        "dtype",
        "itemsize",
        "layout",
        "nbytes",
        "ndim",
        "requires_grad",
        "shape",
        "training",
    )
)
"""Attributes of tensors and modules."""


class Names:
    """One function, what is known of it, and the sources of its local names."""

    def __init__(self, flows: Flows, code: CodeType, node: ast.AST) -> None:
        self.flows, self.ran = flows, flows.ran
        self.code, self.node = code, node
        self.names: dict[str, Sources] = {
            name: frozenset((Source("parameter", name),)) for name in parameters_of(code)
        }
        self.locals = set(code.co_varnames) | set(code.co_cellvars)
        self.aliases = aliases_of(code)
        uses_partial = "partial" in (*names_in(code), *code.co_freevars)
        self.partials = _partials_in(node) if uses_partial else {}
        """By local name."""
        self.control: Sources = NOTHING
        """The branches that decide whether the current statement runs."""
        self.implicit: Sources = NOTHING
        """What functions return that the current statement calls without a call: ``__bool__``,
        ``__iter__``, ``__enter__``. Python 3.11 places these calls at the whole statement."""
        self.loops: list[ast.AST] = []
        self.tries: list[ast.Try | ast.TryStar] = []
        self.keys_of_loops: dict[str, Chain] = {}
        """By variable of a loop: the name of the container whose keys it goes through."""
        self.items_of_loops: dict[str, list[ast.expr]] = {}
        """By variable of a loop over items that are written there: these items."""
        self.augmented: ast.expr | None = None
        """What an assignment like ``kept[key] += 1`` changes, which must have the key already."""
        codes = [code, *(each for each in code.co_consts if isinstance(each, CodeType))]
        self.tensors: set[str] = set().union(
            *(self.ran.tensors.get(id(each), ()) for each in codes if _shares_names(each, code))
        )
        """The names of tensors on the device, those of comprehensions included."""

    def watched(
        self, root: str, steps: tuple[Step, ...], *, in_place: bool = False
    ) -> list[Watched]:
        """A name, and the place that a local name was taken from. ``in_place``: what the name leads
        to is meant, and not the name."""
        watched = self.flows.reads.named(self.code, root, steps)
        if root in self.aliases and (steps or in_place):
            root, origin = self.aliases[root]
            watched = [*watched, *self.flows.reads.named(self.code, root, (*origin, *steps))]
        return watched

    def keys(self, root: str, steps: tuple[Step, ...], *, in_place: bool = False) -> list[Any]:
        watched = self.watched(root, steps, in_place=in_place)
        keys = [each.key for each in watched if each.key is not None]
        if not steps and (root in self.code.co_freevars or root in self.code.co_cellvars):
            keys += self.flows.cell(self.code, root)
        return keys

    def is_device(self, chain: tuple[str, tuple[Step, ...]]) -> bool:
        """Whether a local name, or what is taken of it, is a tensor on the device."""
        text, steps = chain
        tensors = self.tensors
        for kind, name in (("attribute", ""), *steps):
            if name != "":
                text += f".{name}" if kind == "attribute" else f"[{name!r}]"
            if text in tensors:
                return True
        return False

    def is_tensor_of_result(self, node: ast.expr) -> bool:
        """Whether it is a tensor on the device that is taken out of what a call returned."""
        text = ""
        while isinstance(node, ast.Attribute | ast.Subscript):
            if isinstance(node, ast.Attribute):
                text = f".{node.attr}{text}"
            elif isinstance(node.slice, ast.Constant):
                text = f"[{node.slice.value!r}]{text}"
            else:
                return False
            node = node.value
        called = self.ran.called.get(span_of(self.code, node), {})
        return bool(called) and all(text in self.ran.returned.get(each, ()) for each in called)

    def is_number(self, node: ast.expr) -> bool:
        """Whether an expression is a number or text, as far as is known."""
        match node:
            case ast.Constant() | ast.JoinedStr() | ast.Compare():
                return True
            case ast.UnaryOp(_, operand):
                return self.is_number(operand)
            case ast.BinOp(left, _, right):
                return self.is_number(left) and self.is_number(right)
            case ast.Call(ast.Name("bool" | "float" | "int" | "len" | "round" | "str")):
                return True
            case ast.Call(ast.Name("next"), [iterator]):
                chain = name_chain(iterator)
                values = self.flows.reads.values_of(self.code, *chain) if chain else []
                return bool(values) and all(type(each) is itertools.count for each in values)
            case ast.Call():
                position = span_of(self.code, node)
                is_drawn = self.ran.drawn.get(position) in ("clock", "random")
                return is_drawn and position not in self.ran.ops
        chain = name_chain(node)
        if chain is None:
            return False
        root, steps = chain
        if not steps and root in self.ran.numbers.get(id(self.code), ()):
            return True
        values = self.flows.reads.values_of(self.code, root, steps)
        return bool(values) and all(type(value) in NUMBERS for value in values)

    def may_hold_tensors(self, node: ast.expr) -> bool:
        """Whether an expression is a tensor on the device, or something that may hold one."""
        if isinstance(node, ast.Name):
            inside = (f"{node.id}.", f"{node.id}[")
            return any(each == node.id or each.startswith(inside) for each in self.tensors)
        owner = node
        while isinstance(owner, ast.Subscript):
            owner = owner.value
        is_property = isinstance(owner, ast.Attribute) and owner.attr in _WITHOUT_TENSORS
        return not is_property and not self.is_number(node)

    def shared(self, root: str) -> Iterable[int]:
        """The containers that a local name held and that other threads may share, by id."""
        return self.ran.contents.get(id(self.code), {}).get(root, ())

    def parts_of(self, root: str) -> list[str]:
        """A local name and those of its items that were assigned."""
        return [name for name in self.names if name == root or name.startswith(f"{root}[")]

    def is_tensor(self, node: ast.AST) -> bool:
        """Whether an expression that did not run is a tensor on the device, or a method of one."""
        if isinstance(node, ast.Attribute | ast.BinOp):
            return self.is_tensor(node.value if isinstance(node, ast.Attribute) else node.left)
        return isinstance(node, ast.Name) and node.id in self.ran.tensors.get(id(self.code), ())

    def membership_or_none_test(self, node: ast.Compare) -> tuple[ast.expr, str] | None:
        """The expression that `key in table` or `value is None` tests, and what of it: not the
        numbers in it. Of other containers than a dict, the test depends on all values."""
        match node:
            case ast.Compare(_, [ast.In() | ast.NotIn()], [container]):
                return (container, KEYS) if self.is_dict(name_chain(container)) else None
            case ast.Compare(value, [ast.Is() | ast.IsNot()], [ast.Constant(None)]):
                return value, PRESENCE
        return None

    def is_dict(self, chain: Chain | None) -> bool:
        """Whether a name is one of a dict, as far as is known."""
        watched = [] if chain is None else self.watched(*chain, in_place=True)
        return bool(watched) and all(isinstance(each.look_up(), dict) for each in watched)

    def has_key(self, item: ast.Subscript) -> bool:
        """Whether a dict has an item before the assignment to it."""
        chain, key = name_chain(item.value), item.slice
        if not (isinstance(item.ctx, ast.Store) and chain is not None and self.is_dict(chain)):
            return False
        tables = [each.look_up() for each in self.watched(*chain, in_place=True)]
        name = key.id if isinstance(key, ast.Name) else ""
        items = self.items_of_loops.get(name, [])
        are_there = bool(items) and all(
            isinstance(each, ast.Constant) and each.value in table
            for each in items
            for table in tables
        )
        is_plain = item is self.augmented and all(type(table) is dict for table in tables)
        return are_there or is_plain or self.keys_of_loops.get(name) == chain

    def is_decided(self, node: ast.expr) -> bool:
        """Whether a condition has the same answer in all calls to come: it compares a counter that
        only rises with a number that the counter has passed (``self.calls == 0``)."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self.is_decided(node.operand)
        if not isinstance(node, ast.Compare):
            count = self._risen(node)
            return count is not None and count > 0
        if len(node.ops) > 1:
            return False
        for counter, limit, passed in (
            (node.left, node.comparators[0], _PASSED),
            (node.comparators[0], node.left, _PASSED_BY),
        ):
            count, comparison = self._risen(counter), passed.get(type(node.ops[0]))
            if count is not None and comparison is not None and isinstance(limit, ast.Constant):
                return isinstance(limit.value, int | float) and comparison(count, limit.value)
        return False

    def _risen(self, node: ast.expr) -> float | None:
        """What a counter, or a multiple of one, has come to; None for what may fall, or is no
        number."""
        if isinstance(node, ast.BinOp) and type(node.op) in _RISING:
            factor, count = getattr(node.right, "value", None), self._risen(node.left)
            is_positive = isinstance(factor, int | float) and factor > 0
            return _RISING[type(node.op)](count, factor) if is_positive and count else None
        chain = name_chain(node)
        watched = self.watched(*chain) if chain is not None else []
        keys = {each.key for each in watched if each.key is not None}
        written = [each.use for each in self.flows.reads.watched if each.use.written
                   and each.key in keys]  # fmt: skip
        values = {each.look_up() for each in watched if isinstance(each.look_up(), int | float)}
        is_counter = len(keys) == len(values) == 1 and bool(written)
        return values.pop() if is_counter and all(use.rises for use in written) else None

    def is_capped(self, call: ast.Call) -> bool:
        """Whether ``min(count, limit)`` is the limit in all calls to come."""
        if len(call.args) != 2 or call.keywords:
            return False
        for counter, limit in (call.args, call.args[::-1]):
            count, most = self._risen(counter), getattr(limit, "value", None)
            if isinstance(most, int | float) and count is not None and count >= most:
                return True
        return False

    def is_past_end(self, item: ast.Subscript) -> bool:
        """Whether a position has passed the end of a list or tuple, and only rises."""
        position = self._risen(item.slice)
        lists = self.flows.reads.values_of(self.code, *(name_chain(item.value) or ("", ())))
        return (
            position is not None
            and bool(lists)
            and all(isinstance(each, list | tuple) and position >= len(each) for each in lists)
        )

    def returns_nothing(self, call: ast.Call) -> bool:
        """Whether a call is a method of a container of Python's that returns None."""
        function = call.func
        if not isinstance(function, ast.Attribute) or function.attr not in RETURN_NOTHING:
            return False
        values = self.flows.reads.values_of(self.code, *(name_chain(function.value) or ("", ())))
        return bool(values) and all(isinstance(each, CONTAINERS) for each in values)

    def value_of(self, node: ast.expr) -> ast.expr:
        """The expression behind a local name that is assigned once, and any other as it is."""
        return _value_of(node, self.code, self.node)

    def is_unit_draw(self, node: ast.expr) -> bool:
        """Whether an expression is a random number from [0, 1)."""
        if not isinstance(node, ast.Call):
            return False
        function, arguments = node.func, node.args
        name = getattr(function, "attr", None) or getattr(function, "id", "")
        if name in _CONVERSIONS:
            if isinstance(function, ast.Attribute):
                arguments = [function.value]
            return len(arguments) == 1 and self.is_unit_draw(arguments[0])
        values = self.flows.reads.values_of(self.code, *(name_chain(function) or ("", ())))
        is_random = self.ran.drawn.get(span_of(self.code, node)) == "random" or any(
            random_state(value) is not None for value in values
        )
        limits = [getattr(argument, "value", None) for argument in arguments]
        is_unit = name == "uniform" and not node.keywords and limits in ([], [0, 1])
        return is_random and (name in _UNIT_DRAWS or is_unit)

    def numbers(self, node: ast.expr) -> list[float]:
        """All numbers that an expression stands for; empty if they are not known."""
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            pairs = itertools.product(self.numbers(node.left), self.numbers(node.right))
            return list(itertools.starmap(_ARITHMETIC[type(node.op)], pairs))
        if isinstance(node, ast.Constant):
            values: list[Any] = [node.value]
        else:
            # A parameter has been another number in another call.
            root, steps = name_chain(node) or ("", ())
            is_kept = root not in self.locals or (bool(steps) and root in RECEIVERS)
            values = self.flows.reads.values_of(self.code, root, steps) if is_kept else []
        are_numbers = all(isinstance(value, int | float) for value in values)
        return values if are_numbers else []

    def is_made_here(self, node: ast.expr) -> bool:
        """Whether an expression is an object that has no place outside the function."""
        root, steps = name_chain(node) or ("", ())
        is_local = root in self.locals and not steps and root not in parameters_of(self.code)
        return isinstance(node, ast.Call) or (is_local and not self.keys(root, steps))

    def sets_event(self, function: ast.Attribute) -> bool:
        values = self.flows.reads.values_of(self.code, *(name_chain(function.value) or ("", ())))
        return function.attr == "set" and any(
            isinstance(each, Event | ContextVar) for each in values
        )

    def changes_host_tensor(self, function: ast.Attribute) -> bool:
        """Whether a method is one of a tensor on the host that changes it in place."""
        values = self.flows.reads.values_of(self.code, *(name_chain(function.value) or ("", ())))
        are_tensors = [isinstance(each, torch.Tensor) and on_host(each) for each in values]
        return is_in_place(function.attr) and bool(are_tensors) and all(are_tensors)

    def bound(self, function: ast.expr) -> ast.Call | None:
        """The ``partial(f, ...)`` that is called: what it binds are arguments of ``f``."""
        made = self.partials.get(function.id) if isinstance(function, ast.Name) else function
        return made if isinstance(made, ast.Call) and _is_partial(made) else None

    def uses_tensors(self, statement: ast.AST) -> bool:
        names = self.ran.tensors.get(id(self.code), ())
        kinds: tuple[type[ast.expr], ...] = (ast.Name,)
        if not all(map(str.isidentifier, names)):
            kinds = ast.Name, ast.Attribute, ast.Subscript
        return not isinstance(statement, ast.Expr) and any(
            isinstance(node, kinds)
            and isinstance(getattr(node, "ctx", None), ast.Load)
            and ast.unparse(node) in names
            for node in (statement, *inner_nodes(statement))
        )

    def reads_tensors(self, statement: ast.AST) -> bool:
        """The same for tensors of any name, ``self.weight``."""
        return not isinstance(statement, ast.Expr) and any(
            isinstance(node, ast.Name | ast.Attribute | ast.Subscript)
            and isinstance(node.ctx, ast.Load)
            and self.flows.is_on_device(self.code, node)
            for node in (statement, *inner_nodes(statement))
        )

    def last_of(self, kept: ast.expr, value: ast.expr) -> frozenset[Any]:
        """The keys of a place that keeps the last value of an expression: of ``self.version``,
        where nothing but ``self.version = weight._version`` assigns to it; none for others."""
        compared = span_of(self.code, kept), span_of(self.code, value)
        known = self.flows.lasts.get(compared)
        if known is None:
            place = _place(kept)
            known = frozenset() if place is None else self._keys_of_last(place, value)
            self.flows.lasts[compared] = known
        return known

    def _keys_of_last(self, place: Chain, value: ast.expr) -> frozenset[Any]:
        keys = self.keys(*place)
        written = [
            watched
            for watched in self.flows.reads.watched
            if watched.use.written
            and watched.key
            and any(key[: len(watched.key)] == watched.key for key in keys)
        ]
        place, text = _resolved(place, self.aliases), ast.dump(self.value_of(value))
        codes = {(code.co_filename, code.co_qualname): code for code in self.ran.codes.values()}
        for file, name, line in {
            (each.frame.file, each.frame.function, each.use.line) for each in written
        }:
            code = codes.get((file, name))
            function = code and (self.ran.blocks.get(id(code)) or function_of(code))
            if code is None or function is None:
                return frozenset()
            values = [
                part
                for node in inner_nodes(function)
                if getattr(node, "lineno", 0) <= line <= (getattr(node, "end_lineno", 0) or 0)
                for part in _assigned(node, place, aliases_of(code))
            ]
            texts = [part and ast.dump(_value_of(part, code, function)) for part in values]
            if texts != [text]:
                return frozenset()
        return frozenset(watched.key for watched in written)

    def steady(self, node: ast.expr) -> frozenset[Any]:
        """The keys of a counter that only rises: it has another value than in the last call,
        unless something decides whether it rises."""
        chain = name_chain(node)
        is_counter = chain is not None and self._risen(node) is not None
        return frozenset(self.keys(*chain)) if chain is not None and is_counter else frozenset()
