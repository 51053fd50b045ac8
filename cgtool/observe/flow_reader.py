"""Reads where values of the host go from the source of the functions that ran.

Each function is read once for all calls of it, statement by statement. Every local name carries the
set of sources that its value may depend on. What ran says which expressions launched ops and which
called the user's functions; a function's effects depend on its parameters and are applied at each
call of it. Runs nothing.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import itertools
import operator
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from threading import Event
from types import CodeType
from typing import Any

from cgtool.observe.flows import (
    NOTHING,
    Branch,
    Flows,
    Ran,
    Source,
    Sources,
    beside,
    everything_in,
    of_tensor,
)
from cgtool.observe.host_reads import HostReads, Watched
from cgtool.observe.host_values import CONTAINERS, KEYS, NUMBERS, PRESENCE, SIZE, random_state
from cgtool.observe.lookup import is_immutable
from cgtool.observe.source import COMPREHENSIONS, Position, function_of, inner_nodes
from cgtool.observe.uses import (
    CHANGES,
    ONE,
    Step,
    aliases_of,
    assigned_parts,
    name_chain,
    set_by,
    with_items,
)


def read_flows(ran: Ran, reads: HostReads) -> Flows:
    """The facts about all functions that ran."""
    flows = Flows(ran, reads)
    nodes: list[tuple[CodeType, ast.AST | None]] = [
        (code, ran.blocks.get(number) or function_of(code)) for number, code in ran.codes.items()
    ]
    while flows.changed:
        flows.changed = False
        for code, node in nodes:
            if node is not None:
                _Reader(flows, code, node).read()
    return flows


def _position(code: CodeType, node: ast.AST) -> Position:
    return (
        code.co_filename,
        getattr(node, "lineno", 0),
        getattr(node, "col_offset", 0),
        getattr(node, "end_lineno", None) or 0,
        getattr(node, "end_col_offset", None) or 0,
    )


def _parameters(code: CodeType) -> tuple[str, ...]:
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[:count]


_SETTINGS = frozenset(("lr", "momentum", "betas", "weight_decay", "eps"))
_MAKE = frozenset(("dict", "enumerate", "list", "set", "tuple", "zip"))
"""Functions of Python that make an object of their arguments."""
_RECEIVERS = frozenset(("self", "cls", "ctx"))
"""Parameters whose attributes are state with keys of their own."""
_MAY_COPY = frozenset(("to", "type", "contiguous"))
"""Methods of a tensor that run an op, or none if there is nothing to do."""
_SIZES = frozenset(("size", "stride"))
"""Methods of a tensor that return numbers."""
_RESUMING = frozenset(("send", "asend", "__next__", "__anext__"))
"""They let a suspended frame go on, whose state decides what they return, not what runs."""
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_MODES = frozenset(("autocast", "set_grad_enabled", "inference_mode"))
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


_ADDS = frozenset(
    ("append", "extend", "insert", "appendleft", "update", "setdefault", "add", "write", "put")
)
"""Methods that add their arguments to a container: what is added does not depend on its items."""
_DEEPEST = 3
"""How many keys are followed, each into the container that the one before it leads to."""
_ALL, _OF_ANY_KEY = ("all",), ("any key",)
"""Parts of the contents of a container: all, and what is stored with a key that is not known."""


def _key_of(steps: tuple[Step, ...]) -> tuple[str, str | int] | None:
    """The part of the contents that has one key."""
    return ("key", steps[0][1]) if steps and steps[0][0] == "item" else None


def _part(chain: tuple[str, tuple[Step, ...]]) -> str | None:
    """What stands for the items of one key behind a local name: ``state["step"]``."""
    root, steps = chain
    is_item = bool(steps) and steps[0][0] == "item" and isinstance(steps[0][1], str)
    return f"{root}[{steps[0][1]!r}]" if is_item else None


def _calls(target: ast.expr, statement: ast.AST) -> bool:
    """Whether a statement calls what a name holds, and does not use the result."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    function = call.func if isinstance(call, ast.Call) else None
    return (
        isinstance(function, ast.Name) and isinstance(target, ast.Name) and function.id == target.id
    )


def _place(node: ast.expr) -> tuple[str, tuple[Step, ...]] | None:
    """What a value is kept as; ``kept.get("key")`` reads ``kept["key"]``."""
    if isinstance(node, ast.Call) and len(node.args) == 1 and isinstance(node.func, ast.Attribute):
        is_get = node.func.attr == "get"
        node = ast.Subscript(node.func.value, node.args[0], ast.Load()) if is_get else node
    return name_chain(node)


def _is_kept(kept: ast.expr, value: ast.expr, body: Iterable[ast.AST]) -> bool:
    """Whether statements assign a value to where another expression reads it."""
    place, text = _place(kept), ast.dump(value)
    return place is not None and any(
        isinstance(statement, ast.Assign)
        and ast.dump(statement.value) == text
        and place in map(name_chain, statement.targets)
        for statement in body
    )


def _items(sources: Sources, key: str) -> Sources:
    """For containers among the sources, only the items of one key, or the size."""

    def item(source: Source) -> Source:
        if source.kind == "state":
            return Source("item", (source, (key,)))
        if source.kind == "item" and len(source.key[1]) < _DEEPEST:
            state, path = source.key
            return Source("item", (state, (*path, key)))
        return source

    return frozenset(map(item, sources))


def _passed(
    code: CodeType, arguments: list[Sources], named: dict[str | None, Sources]
) -> dict[str, Sources]:
    """What each parameter of a function gets from a call with these arguments."""
    parameters = code.co_varnames[: code.co_argcount]
    if parameters and parameters[0] in _RECEIVERS:
        parameters = parameters[1:]
    by_name: dict[str | None, Sources] = {**dict(zip(parameters, arguments, strict=False)), **named}
    by_star = NOTHING.union(*arguments[len(parameters) :])
    return {name: by_name.get(name, by_star) for name in _parameters(code)}


def _given(source: Source, arguments: dict[str, Sources], receiver: Sources) -> Sources:
    """What stands for a source of a function in a call of it with these arguments."""
    match source.kind:
        case "parameter":
            return receiver if source.key in _RECEIVERS else arguments[source.key]
        case "device":
            return of_tensor(_given(source.key, arguments, receiver))
        case "beside":
            return beside(_given(source.key, arguments, receiver))
    return frozenset((source,))


def _items_written(node: ast.expr) -> dict[str, ast.expr] | None:
    """The items of a dict that is written out, if all of its keys are texts."""
    if not isinstance(node, ast.Dict):
        return None
    keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
    if not all(isinstance(key, str) for key in keys):
        return None
    return dict(zip(map(str, keys), node.values, strict=True))


def _updates(call: ast.Call) -> dict[str, ast.expr] | None:
    """The items that ``table.update(...)`` writes, if they are written out."""
    if not (isinstance(call.func, ast.Attribute) and call.func.attr == "update"):
        return None
    items: dict[str, ast.expr] = {}
    for argument in call.args:
        written = _items_written(argument)
        if written is None:
            return None
        items |= written
    for word in call.keywords:
        if word.arg is None:
            return None
        items[word.arg] = word.value
    return items


def _is_special(code: CodeType, called: str | None) -> bool:
    """Whether a call has called a method of its argument: ``float(x)`` calls ``x.__float__()``."""
    name = code.co_name
    is_of_called = name in ("__call__", "__init__", "__new__", "__post_init__")
    return name != called and name.startswith("__") and name.endswith("__") and not is_of_called


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


class _Reader:
    """Reads one function."""

    def __init__(self, flows: Flows, code: CodeType, node: ast.AST) -> None:
        self.flows, self.ran = flows, flows.ran
        self.code, self.node = code, node
        self.names: dict[str, Sources] = {
            name: frozenset((Source("parameter", name),)) for name in _parameters(code)
        }
        self.locals = set(code.co_varnames) | set(code.co_cellvars)
        self.aliases = aliases_of(code)
        uses_partial = "partial" in (*code.co_names, *code.co_freevars)
        self.partials = _partials_in(node) if uses_partial else {}
        """By local name."""
        self.control: Sources = NOTHING
        """The branches that decide whether the current statement runs."""
        self.implicit: Sources = NOTHING
        """What functions return that the current statement calls without a call: ``__bool__``,
        ``__iter__``, ``__enter__``. Python 3.11 places these calls at the whole statement."""
        self.loops: list[ast.AST] = []
        codes = [code, *(each for each in code.co_consts if isinstance(each, CodeType))]
        self.tensors: set[str] = set().union(
            *(self.ran.tensors.get(id(each), ()) for each in codes if _shares_names(each, code))
        )
        """The names of tensors on the device, those of comprehensions included."""

    def read(self) -> None:
        if isinstance(self.node, ast.Lambda):
            self._return(self.node.body)
        else:
            self._block(self.node.body)  # type: ignore[attr-defined]

    def _add(self, kind: str, key: Any, sources: Sources) -> None:
        if kind != "return":
            sources = everything_in(sources)
        if kind == "state":
            # An object that is replaced as a whole gets its own fields back.
            sources = frozenset(
                each
                for each in sources
                if each.kind != "state" or each.key == key or each.key[: len(key)] != key
            )
        self.flows.add(self.code, (kind, key), sources)

    # --- names

    def _watched(
        self, root: str, steps: tuple[Step, ...], *, in_place: bool = False
    ) -> list[Watched]:
        """A name, and the place that a local name was taken from. ``in_place``: what the name leads
        to is meant, and not the name."""
        watched = self.flows.reads.named(self.code, root, steps)
        if root in self.aliases and (steps or in_place):
            root, origin = self.aliases[root]
            watched = [*watched, *self.flows.reads.named(self.code, root, (*origin, *steps))]
        return watched

    def _keys(self, root: str, steps: tuple[Step, ...], *, in_place: bool = False) -> list[Any]:
        watched = self._watched(root, steps, in_place=in_place)
        keys = [each.key for each in watched if each.key is not None]
        if not steps and (root in self.code.co_freevars or root in self.code.co_cellvars):
            keys += self.flows.cell(self.code, root)
        return keys

    def _load(self, node: ast.expr, chain: tuple[str, tuple[Step, ...]]) -> Sources:
        root, steps = chain
        part = _part(chain)
        if part is None:
            sources = NOTHING.union(*(self.names[name] for name in self._parts_of(root)))
        else:
            sources = self.names.get(part, NOTHING)
            if not self._keys(root, steps):
                sources |= _items(self.names.get(root, NOTHING), str(steps[0][1]))
        key = _key_of(steps)
        sources |= {
            Source("state", ("contents", number, part))
            for number in self._shared(root)
            for part in ((_ALL,) if key is None else (key, _OF_ANY_KEY))
        }
        for key in self._keys(root, steps):
            sources |= {Source("state", key)}
            if key[0] in ("item", "each"):
                sources |= {Source("state", ("contents", key[1]))}
        if steps:
            whole = {*self.flows.cell(self.code, root)}
            whole.update(*(each.prefixes for each in self._watched(*chain)))
            sources |= {Source("whole", key) for key in whole if key is not None}
        inner: ast.expr = node
        while isinstance(inner, ast.Attribute | ast.Subscript):
            sources |= self._results(inner, sources)
            inner = inner.value
        # A name that is tested or looped over calls `__bool__` or `__iter__`.
        sources |= self._results(inner, sources)
        return self._consume(node, of_tensor(sources) if self._is_device(chain) else sources)

    def _is_device(self, chain: tuple[str, tuple[Step, ...]]) -> bool:
        """Whether a local name, or what is taken of it, is a tensor on the device."""
        text, steps = chain
        tensors = self.tensors
        for kind, name in (("attribute", ""), *steps):
            if name != "":
                text += f".{name}" if kind == "attribute" else f"[{name!r}]"
            if text in tensors:
                return True
        return False

    def _is_tensor_of_result(self, node: ast.expr) -> bool:
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
        called = self.ran.called.get(_position(self.code, node), {})
        return bool(called) and all(text in self.ran.returned.get(each, ()) for each in called)

    def _is_number(self, node: ast.expr) -> bool:
        """Whether an expression is a number or text, as far as is known."""
        match node:
            case ast.Constant() | ast.JoinedStr() | ast.Compare():
                return True
            case ast.UnaryOp(_, operand):
                return self._is_number(operand)
            case ast.BinOp(left, _, right):
                return self._is_number(left) and self._is_number(right)
            case ast.Call(ast.Name("bool" | "float" | "int" | "len" | "round" | "str")):
                return True
            case ast.Call(ast.Name("next"), [iterator]):
                chain = name_chain(iterator)
                values = self.flows.reads.values_of(self.code, *chain) if chain else []
                return bool(values) and all(type(each) is itertools.count for each in values)
            case ast.Call():
                position = _position(self.code, node)
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

    def _may_hold_tensors(self, node: ast.expr) -> bool:
        """Whether an expression is a tensor on the device, or something that may hold one."""
        if isinstance(node, ast.Name):
            inside = (f"{node.id}.", f"{node.id}[")
            return any(each == node.id or each.startswith(inside) for each in self.tensors)
        return not self._is_number(node)

    def _sources_of_object(
        self, parts: Iterable[tuple[ast.expr, Sources]], owner: ast.AST | None
    ) -> Sources:
        """The sources of an object that is made of expressions with these, and of ``owner``."""
        parts = list(parts)
        nodes = [node for node, _ in parts]
        if isinstance(owner, ast.expr):
            nodes.append(owner)
        if any(map(self._may_hold_tensors, nodes)):
            parts = [(x, beside(held) if self._is_number(x) else held) for x, held in parts]
        return NOTHING.union(*(held for _, held in parts))

    def _shared(self, root: str) -> Iterable[int]:
        """The containers that a local name held and that other threads may share, by id."""
        return self.ran.contents.get(id(self.code), {}).get(root, ())

    def _parts_of(self, root: str) -> list[str]:
        """A local name and those of its items that were assigned."""
        return [name for name in self.names if name == root or name.startswith(f"{root}[")]

    def _bind(self, target: ast.AST, sources: Sources) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            sources |= self._results(target, sources)
            for item in target.elts:
                self._bind(item, sources)
            return
        if isinstance(target, ast.Starred):
            self._bind(target.value, sources)
            return
        if not isinstance(target, ast.Name | ast.Attribute | ast.Subscript):
            return
        sources |= self.control
        if not isinstance(target, ast.Name):
            position = _position(self.code, target)
            key = target.slice if isinstance(target, ast.Subscript) else None
            if key is not None:
                sources |= self._eval(key)
            if position in self.ran.ops:
                self._add("op", position, sources)
                sources = self.control
            if isinstance(key, ast.Constant) and key.value in _SETTINGS:
                self._add("setting", position, sources)
        self._store(target, sources)

    def _store(self, target: ast.expr, sources: Sources, *, in_place: bool = False) -> None:
        """Values with these sources become part of what an expression names."""
        if id(self.code) in self.ran.blocks:
            # It may be read after the replay.
            self._add("output", id(self.code), sources)
        chain = name_chain(target)
        if (chain is None or ONE in chain[1]) and isinstance(target, ast.Attribute | ast.Subscript):
            self._store(target.value, sources, in_place=True)
        if chain is None:
            return
        root, steps = chain
        for key in self._keys(root, steps, in_place=in_place):
            self._add("state", key, sources)
            if key[0] == "module":
                self._add("setting", _position(self.code, target), sources)
        for number in self._shared(root) if steps or in_place else ():
            for part in (_key_of(steps) or _OF_ANY_KEY, _ALL):
                self._add("state", ("contents", number, part), sources)
        if root in self.locals:
            if isinstance(target, ast.Name):
                for name in self._parts_of(root):
                    del self.names[name]
                self.names[root] = sources
            elif not self._keys(root, steps):
                name = _part(chain) or root
                self.names[name] = self.names.get(name, NOTHING) | sources

    def _change(self, container: ast.expr, sources: Sources, *, adds: bool = False) -> None:
        """A method changes a container. ``adds``: as of ``_ADDS``."""
        sources |= self.control
        self._store(container, sources, in_place=True)
        root, steps = name_chain(container) or ("", ())
        watched = self._watched(root, steps, in_place=True)
        own = frozenset(Source("state", key) for key in self._keys(root, steps, in_place=True))
        sources |= _items(own, SIZE) if adds else own
        for value in (each.look_up() for each in watched):
            if isinstance(value, CONTAINERS):
                self._add("state", ("contents", id(value)), sources)

    def _update(self, table: ast.expr, items: Mapping[str, ast.expr]) -> None:
        """A dict gets these items, and keeps its others."""
        for key, value in items.items():
            item = ast.copy_location(ast.Subscript(table, ast.Constant(key), ast.Store()), value)
            self._store(item, self._eval(value) | self.control)

    def _fill(self, tensor: ast.expr, sources: Sources) -> None:
        """The device copies into a tensor on the host, or into a part of it."""
        while name_chain(tensor) is None and isinstance(tensor, ast.Attribute | ast.Subscript):
            tensor = tensor.value
        root, steps = name_chain(tensor) or ("", ())
        values = self.flows.reads.values_of(self.code, root, steps)
        for key in (*self._keys(root, steps), *self.flows.reads.arrays_on(values)):
            self._add("state", key, sources)
        if root in self.locals and not steps:
            self.names[root] = self.names.get(root, NOTHING) | sources

    # --- expressions

    def _eval(self, node: ast.AST | None) -> Sources:
        """The sources of an expression's value."""
        if node is None:
            return NOTHING
        method = getattr(self, f"_{type(node).__name__}", None)
        if method is not None:
            sources: Sources = method(node)
            return sources
        return self._consume(node, self._children(node))

    def _children(self, node: ast.AST) -> Sources:
        sources: Sources = NOTHING
        for child in ast.iter_child_nodes(node):
            sources |= self._eval(child)
        return sources

    def _consume(self, node: ast.AST, sources: Sources) -> Sources:
        """An expression with operands of these sources: a result on the device has none."""
        position = _position(self.code, node)
        sources |= self._results(node, sources)
        if position in self.ran.ops:
            self._add("op", position, sources)
            return NOTHING
        operands = ast.iter_child_nodes(node) if isinstance(node, ast.BinOp | ast.Call) else ()
        if not any(map(self._is_tensor, operands)):
            return sources
        if id(self.code) in self.ran.hidden:
            self._add("op", position, sources)
        return NOTHING

    def _is_tensor(self, node: ast.AST) -> bool:
        """Whether an expression that did not run is a tensor on the device, or a method of one."""
        if isinstance(node, ast.Attribute | ast.BinOp):
            return self._is_tensor(node.value if isinstance(node, ast.Attribute) else node.left)
        return isinstance(node, ast.Name) and node.id in self.ran.tensors.get(id(self.code), ())

    def _results(self, node: ast.AST, operands: Sources) -> Sources:
        """What functions that an expression calls without a call (a property) return."""
        sources: Sources = NOTHING
        position = _position(self.code, node)
        for number in self.ran.called.get(position, ()):
            names = _parameters(self.ran.codes[number])
            sources |= self._apply(number, dict.fromkeys(names, operands))
        kind = self.ran.drawn.get(position)
        return sources | {Source(kind, position)} if kind else sources

    def _Name(self, node: ast.Name) -> Sources:  # noqa: N802
        return self._load(node, (node.id, ()))

    def _Attribute(self, node: ast.Attribute | ast.Subscript) -> Sources:  # noqa: N802
        chain = name_chain(node)
        if chain is None:
            sources = self._children(node)
            return self._consume(
                node, of_tensor(sources) if self._is_tensor_of_result(node) else sources
            )
        sources = self._children(node) if ONE in chain[1] else NOTHING
        return sources | self._load(node, chain)

    _Subscript = _Attribute

    def _Tuple(self, node: ast.Tuple | ast.List) -> Sources:  # noqa: N802
        parts = ((each, self._eval(each)) for each in node.elts)
        return self._consume(node, self._sources_of_object(parts, None))

    _List = _Tuple

    def _Dict(self, node: ast.Dict) -> Sources:  # noqa: N802
        nodes = [each for each in (*node.keys, *node.values) if each is not None]
        return self._consume(
            node, self._sources_of_object(((x, self._eval(x)) for x in nodes), None)
        )

    def _Constant(self, _node: ast.Constant) -> Sources:  # noqa: N802
        return NOTHING

    def _Lambda(self, node: ast.AST) -> Sources:  # noqa: N802
        return NOTHING

    def _Compare(self, node: ast.Compare) -> Sources:  # noqa: N802
        if self._is_decided(node):
            for operand in (node.left, *node.comparators):
                self._eval(operand)
            return NOTHING
        is_order = all(isinstance(each, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for each in node.ops)
        pair = node.left, node.comparators[0]
        for limit, draw in (pair, pair[::-1]) if is_order and len(node.ops) == 1 else ():
            numbers = self._numbers(self._value_of(limit))
            is_outside = bool(numbers) and not any(0 < number < 1 for number in numbers)
            if is_outside and self._is_unit_draw(self._value_of(draw)):
                # `random() < self.rate` with a rate of 0 or 1 has the same answer in every call.
                self._eval(draw)
                return self._consume(node, self._eval(limit))
        tested = self._membership_or_none_test(node)
        if tested is not None:
            container, key = tested
            sources = _items(self._eval(container), key)
            if container is not node.left:
                sources |= self._eval(node.left) | self._presence(container, node.left)
            return self._consume(node, sources)
        return self._consume(node, self._children(node))

    def _presence(self, container: ast.expr, key: ast.expr) -> Sources:
        """What stores the item of a key, or removes it, and so decides whether it is there."""
        root, steps = name_chain(container) or ("", ())
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            return NOTHING
        places = frozenset(
            Source("state", ("item", id(watched.look_up()), key.value))
            for watched in self._watched(root, steps, in_place=True)
        )
        return _items(places, PRESENCE)

    def _membership_or_none_test(self, node: ast.Compare) -> tuple[ast.expr, str] | None:
        """The expression that `key in table` or `value is None` tests, and what of it: not the
        numbers in it. Of other containers than a dict, the test depends on all values."""
        match node:
            case ast.Compare(_, [ast.In() | ast.NotIn()], [container]):
                return (container, KEYS) if self._is_dict(container) else None
            case ast.Compare(value, [ast.Is() | ast.IsNot()], [ast.Constant(None)]):
                return value, PRESENCE
        return None

    def _is_dict(self, node: ast.expr) -> bool:
        """Whether an expression is the name of a dict, as far as is known."""
        chain = name_chain(node)
        watched = [] if chain is None else self._watched(*chain, in_place=True)
        return bool(watched) and all(isinstance(each.look_up(), dict) for each in watched)

    def _is_decided(self, node: ast.expr) -> bool:
        """Whether a condition has the same answer in all calls to come: it compares a counter that
        only rises with a number that the counter has passed (``self.calls == 0``)."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self._is_decided(node.operand)
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
        """What a counter has come to; None for what may fall, or is no number."""
        chain = name_chain(node)
        watched = self._watched(*chain) if chain is not None else []
        keys = {each.key for each in watched if each.key is not None}
        written = [each.use for each in self.flows.reads.watched if each.use.written
                   and each.key in keys]  # fmt: skip
        values = {each.look_up() for each in watched if isinstance(each.look_up(), int | float)}
        is_counter = len(keys) == len(values) == 1 and bool(written)
        return values.pop() if is_counter and all(use.rises for use in written) else None

    def _value_of(self, node: ast.expr) -> ast.expr:
        """The expression behind a local name that is assigned once, and any other as it is."""
        stored, values = 0, []
        if isinstance(node, ast.Name) and node.id not in _parameters(self.code):
            for inner in inner_nodes(self.node):
                if isinstance(inner, ast.Name) and inner.id == node.id:
                    stored += isinstance(inner.ctx, ast.Store)
                elif isinstance(inner, ast.Assign) and name_chain(inner.targets[0]) == (
                    node.id,
                    (),
                ):
                    values.append(inner.value)
        return values[0] if stored == len(values) == 1 else node

    def _is_unit_draw(self, node: ast.expr) -> bool:
        """Whether an expression is a random number from [0, 1)."""
        if not isinstance(node, ast.Call):
            return False
        function, arguments = node.func, node.args
        name = getattr(function, "attr", None) or getattr(function, "id", "")
        if name in _CONVERSIONS:
            if isinstance(function, ast.Attribute):
                arguments = [function.value]
            return len(arguments) == 1 and self._is_unit_draw(arguments[0])
        values = self.flows.reads.values_of(self.code, *(name_chain(function) or ("", ())))
        is_random = self.ran.drawn.get(_position(self.code, node)) == "random" or any(
            random_state(value) is not None for value in values
        )
        limits = [getattr(argument, "value", None) for argument in arguments]
        is_unit = name == "uniform" and not node.keywords and limits in ([], [0, 1])
        return is_random and (name in _UNIT_DRAWS or is_unit)

    def _numbers(self, node: ast.expr) -> list[float]:
        """All numbers that an expression stands for; empty if they are not known."""
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            pairs = itertools.product(self._numbers(node.left), self._numbers(node.right))
            return list(itertools.starmap(_ARITHMETIC[type(node.op)], pairs))
        if isinstance(node, ast.Constant):
            values: list[Any] = [node.value]
        else:
            # A parameter has been another number in another call.
            root, steps = name_chain(node) or ("", ())
            is_kept = root not in self.locals or (bool(steps) and root in _RECEIVERS)
            values = self.flows.reads.values_of(self.code, root, steps) if is_kept else []
        are_numbers = all(isinstance(value, int | float) for value in values)
        return values if are_numbers else []

    def _NamedExpr(self, node: ast.NamedExpr) -> Sources:  # noqa: N802
        sources = self._eval(node.value)
        self._bind(node.target, sources)
        return sources

    def _IfExp(self, node: ast.IfExp) -> Sources:  # noqa: N802
        self.implicit |= self._results(node, NOTHING)
        decision = self._decide(node.test, [node.body, node.orelse])
        return decision | self._eval(node.body) | self._eval(node.orelse)

    def _ListComp(  # noqa: N802
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
    ) -> Sources:
        before = dict(self.names), self.aliases
        self.aliases = with_items(self.aliases, node)
        sources: Sources = NOTHING
        for loop in node.generators:
            decision = self._decide(loop.iter, [node], loops=True)
            self._bind(loop.target, self._eval(loop.iter))
            sources |= decision
            for test in loop.ifs:
                sources |= self._decide(test, [node])
        for part in ("elt", "key", "value"):
            sources |= self._eval(getattr(node, part, None))
        self.names, self.aliases = before
        return self._consume(node, sources)

    _SetComp = _GeneratorExp = _DictComp = _ListComp

    def _Yield(self, node: ast.Yield | ast.YieldFrom) -> Sources:  # noqa: N802
        self._return(node.value)
        return NOTHING

    _YieldFrom = _Yield

    def _Call(self, node: ast.Call) -> Sources:  # noqa: N802
        position = _position(self.code, node)
        function = node.func
        chain, assigned = name_chain(node), set_by(node)
        if chain is not None or assigned is not None:
            sources = NOTHING.union(*map(self._eval, node.args[1:]))
            if assigned is not None:
                self._store(assigned, sources | self.control)
            return sources if chain is None else sources | self._load(node, chain)
        replaced = self._replaced_fields(node)
        if replaced is not None:
            return replaced
        values, words = node.args, node.keywords
        bound = self._bound(function)
        if bound is not None:
            function, values = bound.args[0], [*bound.args[1:], *values]
            words = [*bound.keywords, *words]
        chosen = self._eval(function)
        if isinstance(function, ast.Attribute):
            chosen |= self._eval(function.value)
        if position in self.ran.settled and position not in self.ran.drawn:
            chosen = NOTHING  # whatever the state of the generator
        arguments = [self._eval(argument) for argument in values]
        named = {word.arg: self._eval(word.value) for word in words}
        everything = chosen.union(*arguments, *named.values())
        name = getattr(function, "attr", None) or getattr(function, "id", "")
        if name == "len":
            everything = _items(everything, SIZE)
        kind = self.ran.drawn.get(position)
        drawn = frozenset((Source(kind, position),)) if kind else NOTHING
        key = values[0].value if values and isinstance(values[0], ast.Constant) else None
        if name == "get" and isinstance(key, str) and position not in self.ran.called:
            chosen = _items(chosen, key)
            everything = chosen.union(*arguments, *named.values())
        updated = _updates(node)
        if updated is not None and isinstance(function, ast.Attribute):
            self._update(function.value, updated)
        elif isinstance(function, ast.Attribute) and (
            name in CHANGES or self._sets_event(function)
        ):
            adds = name in _ADDS
            receiver = _items(chosen, SIZE) if adds else chosen
            changed = receiver.union(*arguments, *named.values())
            self._change(function.value, changed, adds=adds)
        if isinstance(function, ast.Attribute) and name == "copy_" and kind == "copied":
            self._fill(function.value, drawn)
        if name == "shuffle":
            for argument in node.args:
                self._change(argument, everything | drawn)
        for number in self.ran.handed.get(position, ()):
            names = _parameters(self.ran.codes[number])
            drawn |= self._apply(number, dict.fromkeys(names, everything))
        called = self.ran.called.get(position)
        runs_ops = position in self.ran.ops
        is_resumed = name in _RESUMING and any(
            self.ran.codes[number].co_flags & _SUSPENDED for number in called or ()
        )
        if not is_resumed and (called or (runs_ops and not isinstance(function, ast.Attribute))):
            # The value is a function or a module. What a loop chooses is chosen by the loop.
            choosing = frozenset(each for each in chosen if each.kind != "beside")
            if not choosing <= self._deciding():
                self._branch(function, [node], choosing, calls=True)
            everything = NOTHING.union(*arguments, *named.values())
        is_method = isinstance(function, ast.Attribute) and self._is_tensor(function.value)
        if runs_ops or (is_method and name in _MAY_COPY):
            self._add("op", position, everything)
        if is_method and name in _SIZES:
            return everything | drawn
        if not called:
            if runs_ops or self._is_tensor(function):
                return drawn
            if (
                isinstance(function, ast.Name)
                and function.id not in _MAKE
                and hasattr(builtins, function.id)
            ):
                return everything | drawn
            # It may make an object of its arguments.
            parts = [*zip(values, arguments, strict=True)]
            parts += [(word.value, named[word.arg]) for word in words]
            return chosen | drawn | self._sources_of_object(parts, getattr(function, "value", None))
        # What a function of the host returns depends on the object that it is a method of, which
        # may be replaced (`self.phase = self.phase.next()`), and on the name that chooses it.
        result = drawn if position in self.ran.around else drawn | chosen
        result |= everything if is_resumed else NOTHING
        spread = any(isinstance(argument, ast.Starred) for argument in values) or None in named
        for number, direct in called.items():
            code = self.ran.codes[number]
            if code.co_flags & inspect.CO_GENERATOR or _is_special(code, name):
                result |= everything
            if name != code.co_name and "-packages/" in code.co_filename:
                # A method in C has called it: NumPy's `max` calls `_amax(a, axis, ...)`.
                passed = dict.fromkeys(_parameters(code), everything | chosen)
            elif direct and not spread:
                passed = _passed(code, arguments, named)
            else:
                passed = dict.fromkeys(_parameters(code), everything)
            is_own = isinstance(function, ast.Attribute) and self._is_made_here(function.value)
            result |= self._apply(number, passed, chosen if is_own else NOTHING)
        return result

    def _is_made_here(self, node: ast.expr) -> bool:
        """Whether an expression is an object that has no place outside the function."""
        root, steps = name_chain(node) or ("", ())
        is_local = root in self.locals and not steps and root not in _parameters(self.code)
        return isinstance(node, ast.Call) or (is_local and not self._keys(root, steps))

    def _sets_event(self, function: ast.Attribute) -> bool:
        values = self.flows.reads.values_of(self.code, *(name_chain(function.value) or ("", ())))
        return function.attr == "set" and any(isinstance(each, Event) for each in values)

    def _bound(self, function: ast.expr) -> ast.Call | None:
        """The ``partial(f, ...)`` that is called: what it binds are arguments of ``f``."""
        made = self.partials.get(function.id) if isinstance(function, ast.Name) else function
        return made if isinstance(made, ast.Call) and _is_partial(made) else None

    def _replaced_fields(self, call: ast.Call) -> Sources | None:
        """What ``self.pair._replace(step=1)`` and ``replace(self.pair, step=1)`` return: the object
        with a new field, which is as good as assigned; None for other calls."""
        function = call.func
        name = getattr(function, "attr", None) or getattr(function, "id", "")
        if isinstance(function, ast.Attribute) and name == "_replace":
            replaced: ast.expr | None = function.value
        else:
            replaced = call.args[0] if name == "replace" and call.args else None
        root, steps = (replaced is not None and name_chain(replaced)) or ("", ())
        places = self._watched(root, steps, in_place=True)
        keys = [
            each.key
            for each in places
            if each.key is not None and each.key != (id(each.look_up()), root)
        ]
        if not keys or not all(is_immutable(each.look_up()) for each in places):
            return None
        sources = frozenset(Source("whole", key) for key in keys)
        for word in call.keywords:
            values = self._eval(word.value) | self.control
            for key in keys:
                self._add("state", (*key, word.arg), values)
                sources |= {Source("state", (*key, word.arg))}
        return sources

    def _deciding(self) -> Sources:
        """What the branches depend on that decide whether the current statement runs."""
        sources: set[Source] = set(self.control)
        for decision in self.control:
            for table in (self.flows.facts, self.flows.summaries[id(self.code)]):
                sources |= table.get(("decision", decision.key), set())
        return frozenset(sources)

    def _apply(
        self, number: int, arguments: dict[str, Sources], receiver: Sources = NOTHING
    ) -> Sources:
        """What a call of a function leads to; returns the sources of what it returns. ``receiver``:
        those of the object whose method it is, if that has no place with keys of its own."""
        result: Sources = NOTHING
        for fact, sources in list(self.flows.summaries[number].items()):
            passed = NOTHING.union(*(_given(each, arguments, receiver) for each in list(sources)))
            if fact[0] == "return":
                result |= passed
            elif passed:
                self.flows.add(self.code, fact, everything_in(passed))
        return result

    # --- branches

    def _decide(self, test: ast.expr, guarded: list[Any], *, loops: bool = False) -> Sources:
        """A condition over these statements or expressions; the source that it becomes."""
        sources = self._eval(test)
        if not loops and self._is_decided(test):
            return NOTHING
        asked = test.operand if isinstance(test, ast.UnaryOp) else test
        if not loops and isinstance(asked, ast.Name):
            sources = _items(sources, SIZE)
        sources |= self.implicit
        position = _position(self.code, test)
        if loops and position in self.ran.ops:
            return NOTHING
        if loops and name_chain(test) is not None:
            # How many items a container has does not depend on the numbers in them.
            sources = frozenset(each for each in sources if each.kind != "beside")
        if position in self.ran.reads:
            sources |= {Source("read", position)}
        return self._branch(test, guarded, sources, loops=loops)

    def _branch(
        self,
        test: ast.AST,
        guarded: list[Any],
        sources: Sources,
        *,
        loops: bool = False,
        calls: bool = False,
    ) -> Sources:
        # What decides whether it is reached at all decides there.
        sources -= self.control
        if not sources:
            return NOTHING
        position = _position(self.code, test)
        branch = self.flows.branches.get(position)
        if branch is None:
            branch = self.flows.branches[position] = Branch(
                self.code, position[1], loops=loops, calls=calls
            )
            branch.spans += [_position(self.code, node) for node in guarded]
            branch.effects = self.flows.change_tensors(self.code, guarded)
            branch.selects = any(map(self._uses_tensors, guarded))
        self._add("decision", position, sources)
        return frozenset((Source("decision", position),))

    def _uses_tensors(self, statement: ast.AST) -> bool:
        names = self.ran.tensors.get(id(self.code), ())
        return not isinstance(statement, ast.Expr) and any(
            isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)
            for node in (statement, *inner_nodes(statement))
        )

    # --- statements

    def _block(self, statements: Iterable[ast.AST]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, node: ast.AST) -> None:
        outer, self.implicit = self.implicit, self._results(node, NOTHING)
        method = getattr(self, f"_do_{type(node).__name__}", None)
        if method is not None:
            method(node)
        elif isinstance(node, ast.stmt) and not isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        ):
            self._children(node)
        self.implicit = outer

    def _do_Assign(self, node: ast.Assign) -> None:  # noqa: N802
        for target in node.targets:
            pairs = assigned_parts(target, node.value)
            values = [(part, self._eval(value)) for part, value in pairs]
            for part, sources in values:
                self._bind(part, sources)

    def _do_AnnAssign(self, node: ast.AnnAssign) -> None:  # noqa: N802
        if node.value is not None:
            self._bind(node.target, self._eval(node.value))

    def _do_AugAssign(self, node: ast.AugAssign) -> None:  # noqa: N802
        items = _items_written(node.value) if isinstance(node.op, ast.BitOr) else None
        if items is not None:
            self._update(node.target, items)
            return
        sources = self._eval(node.target) | self._eval(node.value)
        self._bind(node.target, self._consume(node, sources))

    def _do_Return(self, node: ast.Return) -> None:  # noqa: N802
        self._return(node.value)

    def _return(self, value: ast.expr | None) -> None:
        if value is None:
            self._add("return", id(self.code), self.control)
            return
        sources = self._eval(value)
        self._add("return", id(self.code), sources | self.control)
        with_tensors = self.ran.outputs.get(id(self.code))
        if with_tensors is None:
            return
        parts = value.elts if isinstance(value, ast.Tuple) else [value]
        if len(parts) == len(with_tensors):
            for part, has_tensors in zip(parts, with_tensors, strict=True):
                if has_tensors:
                    self._add("output", id(self.code), self._eval(part) | self.control)

    def _do_If(self, node: ast.If) -> None:  # noqa: N802
        guarded: list[ast.AST] = [*node.body, *node.orelse]
        decision = self._decide(self._compared_with_last(node) or node.test, guarded)
        before, names = self.control, self.names
        joined: dict[str, Sources] = {}
        self.control = before | decision
        for body in (node.body, node.orelse):
            self.names = dict(names)
            self._block(body)
            for name, sources in self.names.items():
                joined[name] = joined.get(name, NOTHING) | sources
        self.names, self.control = joined, before
        self._leave_early(guarded, decision)

    def _compared_with_last(self, node: ast.If) -> ast.expr | None:
        """The value whose change since the last call is the condition: ``x.shape`` of ``if
        self.shape != x.shape:`` if ``self.shape = x.shape`` follows, and nothing else assigns to
        that. What was kept does not matter."""
        tests = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
        test = tests[-1]
        if not isinstance(test, ast.Compare) or len(test.ops) > 1:
            return None
        if not isinstance(test.ops[0], ast.NotEq | ast.IsNot):
            return None
        kept, value = test.left, test.comparators[0]
        if not _is_kept(kept, value, node.body):
            kept, value = value, kept
        first = tests[0]
        is_empty = (
            isinstance(first, ast.Compare)
            and isinstance(first.ops[0], ast.Is)
            and _place(first.left) == _place(kept)
        )
        if not _is_kept(kept, value, node.body) or tests[:-1] not in ([], [first] * is_empty):
            return None
        keys = set(self._keys(*(_place(kept) or ("", ()))))
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        elsewhere = any(
            watched.key in keys
            and watched.use.written
            and not (watched.frame.file == self.code.co_filename and watched.use.line in lines)
            for watched in self.flows.reads.watched
        )
        return value if keys and not elsewhere else None

    def _leave_early(self, guarded: list[ast.AST], decision: Sources) -> None:
        """What follows a branch with a `return`, `break` or `continue` depends on it."""
        inside = [node for part in guarded for node in (part, *inner_nodes(part))]
        span: ast.AST | None = None
        if any(isinstance(node, ast.Return) for node in inside):
            span = self.node
        elif self.loops and any(isinstance(node, ast.Break | ast.Continue) for node in inside):
            span = self.loops[-1]
        if span is None or not decision:
            return
        self.control |= decision
        last = max(getattr(part, "end_lineno", 0) for part in guarded)
        end = _position(self.code, span)
        for source in decision:
            branch = self.flows.branches[source.key]
            file, line, column, *_ = source.key
            start = end[1:3] if span is not self.node else (line, column)
            place = (file, *start, *end[3:])
            if place in branch.spans:
                continue
            branch.spans.append(place)
            skipped = [
                node
                for node in inner_nodes(span)
                if isinstance(node, ast.stmt) and (span is not self.node or node.lineno > last)
            ]
            branch.effects |= self.flows.change_tensors(self.code, skipped)
            branch.selects |= any(map(self._uses_tensors, skipped))

    def _loop(self, node: Any, decision: Sources, target: Sources | None) -> None:
        before = self.control
        self.loops.append(node)
        for _ in range(2):
            names = dict(self.names)
            self.control = before | decision
            if target is not None:
                self._bind(node.target, target)
            self._block(node.body)
            for name, sources in names.items():
                self.names[name] = self.names.get(name, NOTHING) | sources
        self.loops.pop()
        # A `return` in the loop decides what follows, a `break` does not.
        returns = any(isinstance(inner, ast.Return) for inner in inner_nodes(node))
        self.control = self.control if returns else before
        self._block(node.orelse)

    def _do_For(self, node: ast.For | ast.AsyncFor) -> None:  # noqa: N802
        values = self._eval(node.iter) | self.implicit
        decision = self._decide(node.iter, list(node.body), loops=True)
        for source in decision:
            # What it calls is not known if none of it ran.
            branch = self.flows.branches[source.key]
            branch.effects |= any(map(partial(_calls, node.target), node.body))
        self._loop(node, decision, values)

    _do_AsyncFor = _do_For  # noqa: N815

    def _do_While(self, node: ast.While) -> None:  # noqa: N802
        self._loop(node, self._decide(node.test, list(node.body)), None)
        self._eval(node.test)

    def _do_With(self, node: ast.With | ast.AsyncWith) -> None:  # noqa: N802
        for item in node.items:
            sources = self._eval(item.context_expr) | self.implicit
            call = item.context_expr
            function = call.func if isinstance(call, ast.Call) else None
            if (getattr(function, "attr", None) or getattr(function, "id", "")) in _MODES:
                self._branch(call, list(node.body), sources)
            if item.optional_vars is not None:
                self._bind(item.optional_vars, sources)
        self._block(node.body)

    _do_AsyncWith = _do_With  # noqa: N815

    def _do_Try(self, node: Any) -> None:  # noqa: N802
        self._block(node.body)
        for handler in node.handlers:
            self._block(handler.body)
        self._block(node.orelse)
        self._block(node.finalbody)

    _do_TryStar = _do_Try  # noqa: N815

    def _do_Match(self, node: ast.Match) -> None:  # noqa: N802
        guarded = [statement for case in node.cases for statement in case.body]
        decision = self._decide(node.subject, guarded)
        before = self.control
        self.control = before | decision
        for case in node.cases:
            self._block(case.body)
        self.control = before
        self._leave_early(list(guarded), decision)

    def _do_Delete(self, _node: ast.Delete) -> None:  # noqa: N802
        """Nothing is read."""
