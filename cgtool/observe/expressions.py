"""How expressions use what the calls inside them return, read from their source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from cgtool.observe.source import Position, statement_start, tree_of
from cgtool.observe.uses import assigned_parts

_VIEWS = ("T", "mT", "H", "mH", "data", "real", "imag")
"""Attributes of a tensor that are views of it."""
_PICK = ("max", "min", "reduce")
"""Functions that return one of the items that they are given, or fold all."""
_COLLECT = ("sorted", "list", "tuple", "nlargest", "nsmallest")
_PASS = ("enumerate", "zip", "reversed")
_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.GeneratorExp
_END = 1 << 30


def takes_both(outer: Position, first: Position, second: Position) -> int:
    """How many results of two calls of one function an expression takes as they are, if it takes
    that of the first call, and the second one runs inside it too: ``dist(run(x), run(y))``, ``2``;
    ``cross_entropy(run(x), run(y).softmax(0))``, ``1``; else 0."""
    return _takes_both(outer, first, second)


@cache
def _takes_both(outer: Position, first: Position, second: Position) -> int:
    node = _at(outer)
    one, other = _at(first), _at(second)
    if node is None or not isinstance(one, ast.Call) or not isinstance(other, ast.Call):
        return 0
    operands = list(_operands(node))
    is_inside = _contains(node, other) and node is not other and not _contains(one, other)
    if one not in operands or not is_inside or not _is_alike(one, other):
        return 0
    return 1 + (other in operands)


def _is_alike(one: ast.Call, other: ast.Call) -> bool:
    """Whether two calls are of one function, with the same arguments by name."""
    return (
        ast.unparse(one.func) == ast.unparse(other.func)
        and len(one.args) == len(other.args)
        and [each.arg for each in one.keywords] == [each.arg for each in other.keywords]
    )


def _operands(node: ast.expr) -> Iterator[ast.expr]:
    """The expressions whose values an operation takes, or whose views."""
    if isinstance(node, ast.Call):
        given = [*node.args, *(each.value for each in node.keywords)]
        if isinstance(node.func, ast.Attribute):
            given.append(node.func.value)
    elif isinstance(node, ast.BinOp):
        given = [node.left, node.right]
    elif isinstance(node, ast.Compare):
        given = [node.left, *node.comparators]
    else:
        given = []
    for each in given:
        yield from _values(each)


def _values(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        for each in node.elts:
            yield from _values(each)
        return
    if isinstance(node, ast.Dict):
        for each in node.values:
            yield from _values(each)
        return
    while isinstance(node, ast.Subscript) or (
        isinstance(node, ast.Attribute) and node.attr in _VIEWS
    ):
        node = node.value
    yield node


Variable = tuple[str, str]
"""A variable, and an attribute of it, or ""."""


@dataclass(frozen=True)
class Assigned:
    """What an assignment binds one variable to."""

    target: Variable
    source: Variable | None
    """Another one, as it is."""
    read: frozenset[str]
    """The names in the value, which may be attributes."""


@cache
def assigned_at(file: str, line: int) -> tuple[Assigned, ...]:
    """What an assignment at a line binds: of ``before, best = best, new`` both, each by itself; ()
    if it binds more than variables and their attributes."""
    start = statement_start(file, line)
    pairs = [
        pair
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Assign) and node.lineno == start
        for target in node.targets
        for pair in assigned_parts(target, node.value)
    ]
    variables = [(_variable(target), value) for target, value in pairs]
    assigned = [
        Assigned(target, _variable(value), _names_read(value))
        for target, value in variables
        if target is not None
    ]
    return tuple(assigned) if len(assigned) == len(pairs) else ()


def names_of_next(file: str, line: int) -> frozenset[str]:
    """The names to which a line binds what ``next(...)`` returns."""
    return frozenset(
        name.id
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Assign) and node.lineno <= line <= (node.end_lineno or 0)
        if isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "next"
        for target in node.targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    )


def _names_read(node: ast.expr) -> frozenset[str]:
    parts = list(ast.walk(node))
    names = {part.id for part in parts if isinstance(part, ast.Name)}
    return frozenset(names | {part.attr for part in parts if isinstance(part, ast.Attribute)})


def _variable(node: ast.expr) -> Variable | None:
    if isinstance(node, ast.Name):
        return node.id, ""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.value.id, node.attr
    return None


@dataclass(frozen=True)
class Collection:
    """An expression that makes a call for each item, and then has all results at once:
    ``max(map(run, xs), key=...)``, ``sorted(run(x) for x in xs)``, ``[run(x) for x in xs]``."""

    position: Position
    function: str
    """``max``; "" for a comprehension."""
    names: frozenset[str]
    """Variables, and attributes as ``.name``, to which its statement binds such a result."""
    lines: tuple[int, int]
    """The first and the last line where these names are such results."""
    is_unpacked: bool
    """Each of the names gets another one."""
    is_returned: bool
    """A function returns its value as it is."""

    @property
    def picks(self) -> bool:
        """Whether its value is one of the results."""
        return self.function in ("max", "min")

    @property
    def folds(self) -> bool:
        """Whether it passes results to a function of two."""
        return self.function == "reduce"


@cache
def collection_at(position: Position) -> Collection | None:
    """The outermost such expression, where the call at a position makes one of its items, or where
    it calls ``map``."""
    parents = _parents(position[0])
    item = _at(position)
    if not isinstance(item, ast.Call):
        return None
    node: ast.AST = item
    if _called(item) not in _PICK + _COLLECT:
        while isinstance(parents.get(node), ast.Tuple):
            node = parents[node]
        around = parents.get(node)
        if not isinstance(around, _COMPREHENSIONS) or around.elt is not node:
            return None
        node = around
    elif not any(_called(each) in ("map", "filter") for each in item.args):
        return None
    outermost = None if isinstance(node, ast.GeneratorExp) else node
    while isinstance(call := parents.get(node), ast.Call) and node in call.args:
        if _called(call) in _PICK + _COLLECT:
            outermost = call
        elif _called(call) not in _PASS:
            break
        node = call
    if not isinstance(outermost, ast.expr):
        return None
    return _collection(outermost, _called(outermost), position[0])


@cache
def gathered_in(file: str) -> tuple[Collection, ...]:
    """The results of several coroutines that a file binds to a name each: ``a, b = await gather(
    run(x), run(y))``."""
    gathered = (
        _collection(node, "gather", file)
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Await) and _called(node.value) == "gather"
    )
    return tuple(each for each in gathered if each.is_unpacked)


@cache
def returned_at(call: Position, collection: Collection) -> Collection | None:
    """The same collection, where a call returns it."""
    node = _at(call)
    return None if node is None else _collection(node, collection.function, call[0])


def _collection(node: ast.expr, function: str, file: str) -> Collection:
    parents = _parents(file)
    is_returned = isinstance(parents.get(node), ast.Return)
    return Collection(
        (file, *_span(node)), function, *_bound_by(node, function, parents), is_returned
    )


@cache
def has_operand(outer: Position, inner: Position) -> bool:
    """Whether an operation takes the value of an expression as it is: ``max(...).tolist()``."""
    node = _at(outer)
    return node is not None and any(_span(each) == inner[1:] for each in _operands(node))


def _called(node: ast.AST | None) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return str(getattr(node.func, "attr", None) or getattr(node.func, "id", ""))


def _bound_by(
    node: ast.expr, function: str, parents: dict[ast.AST, ast.AST]
) -> tuple[frozenset[str], tuple[int, int], bool]:
    """The variables that get a result of a collection, where they have it, and whether each gets
    another one."""
    inner: ast.AST = node
    while _called(parents.get(inner)) in _PASS:
        inner = parents[inner]
    parent = parents.get(inner)
    if isinstance(parent, ast.For | ast.AsyncFor) and inner is parent.iter:
        if function not in _PICK:
            lines = parent.body[0].lineno, parent.body[-1].end_lineno or 0
            return _names_in(parent.target), lines, False
    elif isinstance(parent, ast.comprehension) and inner is parent.iter:
        around = parents.get(parent)
        if isinstance(around, ast.expr) and function not in _PICK:
            return _names_in(parent.target), (around.lineno, around.end_lineno or 0), False
    elif isinstance(parent, ast.Assign) and inner is parent.value:
        is_picked = function in _PICK
        first = (parent.end_lineno or 0) + 1
        names = frozenset().union(*map(_names_in, parent.targets))
        is_tuple = any(isinstance(each, ast.Tuple | ast.List) for each in parent.targets)
        if is_picked or is_tuple:
            return names, (first, _END), not is_picked
    return frozenset(), (0, -1), False


def _names_in(target: ast.AST) -> frozenset[str]:
    bound = [node for node in ast.walk(target) if isinstance(getattr(node, "ctx", None), ast.Store)]
    names = {node.id for node in bound if isinstance(node, ast.Name)}
    return frozenset(names | {f".{node.attr}" for node in bound if isinstance(node, ast.Attribute)})


@cache
def _parents(file: str) -> dict[ast.AST, ast.AST]:
    return {child: node for node in ast.walk(tree_of(file)) for child in ast.iter_child_nodes(node)}


@cache
def _expressions(file: str) -> dict[tuple[int, int, int, int], ast.expr]:
    """By position. Of those at one position the outermost: ``x`` of an f-string's ``{x}``."""
    found: dict[tuple[int, int, int, int], ast.expr] = {}
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.expr):
            found.setdefault(_span(node), node)
    return found


def _at(position: Position) -> ast.expr | None:
    return _expressions(position[0]).get(position[1:])


def _span(node: ast.expr) -> tuple[int, int, int, int]:
    return node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0


def _contains(outer: ast.expr, inner: ast.expr) -> bool:
    first, last = _span(outer)[:2], _span(outer)[2:]
    return first <= _span(inner)[:2] and _span(inner)[2:] <= last
