"""What the source of a function reads and writes by name: ``self.n``, ``config["lr"]``, a global.

Reads the source of functions and runs nothing.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType

from cgtool.observe.source import (
    Position,
    block_at,
    branches_of,
    function_of,
    functions_of,
    inner_nodes,
    text_at,
    tree_of,
)

Step = tuple[str, str | int]
"""``("attribute", name)`` or ``("item", key)``."""

Chain = tuple[str, tuple[Step, ...]]
"""A place by the name that leads to it: the root, and the steps from there."""

ATTRIBUTES: Step = ("attribute", "__dict__")
"""All attributes of an object: one of them whose name is computed."""
EACH: Step = ("each", "all")
"""All items of a container, one after the other."""
ONE: Step = ("each", "one")
"""An item of a container, whose key is computed."""
_TYPE: Step = ("attribute", "__class__")


@dataclass(frozen=True)
class Use:
    """One name, with the attributes and constant keys behind it, in one function."""

    root: str
    scope: str
    """``argument``, ``closure``, ``global``, ``local``."""
    steps: tuple[Step, ...]
    line: int
    written: bool
    """Assigned or removed here, or a method that changes a container is called on it."""
    tested: bool
    """In the condition of an `if`, a `while` or a conditional expression, or in a loop's range."""
    computed: bool
    """An operand of arithmetic or of a comparison, or an index."""
    called: bool
    """The value itself is called here."""
    resets: bool = False
    """It gets a value that is written out, or is emptied: `self.n = 0`, `self.rows.clear()`."""
    rises: bool = False
    """A positive constant is added: `self.n += 1`."""
    removes: bool = False
    """It is removed: `del self.n`, `self.rows.pop("n")`."""
    counted: str = ""
    """How many items it has is asked here, beside another use of it: ``loop`` (it is looped over),
    ``length`` (by `len`), ``empty`` (a condition asks whether there are any)."""

    name: str = field(default="", compare=False)
    """Of an attribute whose name is computed: how it is written, ``f"tap{k}"``."""
    setter: str = field(default="", compare=False)
    """The function that assigns to it, or removes it: ``setattr``, ``delattr``."""
    method: str = field(default="", compare=False)
    """Its method that changes it: ``append``."""
    in_place: bool = field(default=False, compare=False)
    """Something in it is assigned or removed, by a key that is computed."""

    @property
    def by(self) -> str:
        """The function that changes it, in words: "" or " by `setattr`"."""
        return f" by `{self.setter}`" if self.setter else ""

    @property
    def text(self) -> str:
        """As it is written: ``self.n``."""
        shown = self.root
        for step in self.steps:
            kind, name = step
            if step == ATTRIBUTES and self.name:
                shown = f"getattr({shown}, {self.name})"
            elif step in (ATTRIBUTES, _TYPE):
                shown = f"{'vars' if step == ATTRIBUTES else 'type'}({shown})"
            elif step in (EACH, ONE):
                shown += "[...]"
            else:
                shown += f".{name}" if kind == "attribute" else f"[{name!r}]"
        return shown


CHANGES = frozenset(
    (
        "append", "extend", "insert", "pop", "popleft", "appendleft", "remove", "clear", "update",
        "setdefault", "add", "discard", "write", "rotate", "sort", "reverse", "popitem", "put",
        "move_to_end", "symmetric_difference_update", "difference_update", "intersection_update",
    )
)  # fmt: skip
"""Methods that change a container."""
RETURN_NOTHING = CHANGES - {"pop", "popleft", "popitem", "setdefault", "write"}
"""Those of them that return None."""
CHANGE_FIRST = frozenset(
    (
        "heappush", "heappop", "heapreplace", "heappushpop", "heapify", "insort", "insort_left",
        "insort_right", "shuffle",
    )
)  # fmt: skip
"""Functions that change their first argument, a list."""


def name_chain(node: ast.expr) -> Chain | None:
    """``self.config["lr"]`` as its root and steps; None if anything else is in between, or the last
    key is computed. ``getattr(self, "n")`` and ``vars(self)["n"]`` are ``self.n``."""
    steps: list[Step] = []
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute):
            step: Step | None = ("attribute", node.attr)
            inner = node.value
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            key = node.slice.value
            step = ("item", key) if isinstance(key, str | int) else None
            inner = node.value
        elif isinstance(node, ast.Subscript) and steps and not isinstance(node.slice, ast.Slice):
            step, inner = ONE, node.value
        elif isinstance(node, ast.Call) and node.args:
            step = _step_of_call(node)
            inner = node.args[0]
        else:
            return None
        if step == ATTRIBUTES and steps:
            kind, name = steps.pop()
            step = ("attribute", name) if kind == "item" else None
        if step is None:
            return None
        steps.append(step)
        node = inner
    return node.id, tuple(reversed(steps))


def _step_of_call(call: ast.Call) -> Step | None:
    function = call.func.id if isinstance(call.func, ast.Name) else ""
    if function == "getattr" and len(call.args) > 1:
        name = call.args[1]
        is_known = isinstance(name, ast.Constant) and isinstance(name.value, str)
        return ("attribute", name.value) if is_known else ATTRIBUTES  # type: ignore[attr-defined]
    return {"type": _TYPE, "vars": ATTRIBUTES}.get(function) if len(call.args) == 1 else None


def assigned_parts(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """What is assigned to what: of ``a, b = 1, 2`` each by itself."""
    if (
        isinstance(target, ast.Tuple)
        and isinstance(value, ast.Tuple)
        and len(target.elts) == len(value.elts)
    ):
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


_ARGUMENTS = {"setattr": 3, "delattr": 2}


def set_by(call: ast.Call) -> ast.expr | None:
    """What ``setattr`` assigns to, or ``delattr`` removes."""
    if isinstance(call.func, ast.Name) and len(call.args) == _ARGUMENTS.get(call.func.id):
        read = ast.Call(ast.Name("getattr", ast.Load()), call.args[:2], [])
        return ast.copy_location(read, call)
    return None


def popped_by(call: ast.Call) -> ast.expr | None:
    """The item that a ``pop`` of a known key removes: ``vars(self)["mask"]``."""
    function, key = call.func, next(iter(call.args), None)
    if not (isinstance(function, ast.Attribute) and function.attr == "pop"):
        return None
    if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
        return None
    return ast.copy_location(ast.Subscript(function.value, key, ast.Del()), call)


def _origin(node: ast.expr) -> Chain | None:
    """The place that a value is taken from, which may have a computed key."""
    key: ast.expr | None = None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        inner = node.func.value
        key = node.args[0] if node.func.attr in ("get", "setdefault") else None
    elif isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice):
        inner, key = node.value, node.slice
    if key is None:
        return name_chain(node)
    chain = _origin(inner)
    is_known = isinstance(key, ast.Constant) and isinstance(key.value, str | int)
    step = ("item", key.value) if is_known else ONE  # type: ignore[attr-defined]
    return None if chain is None else (chain[0], (*chain[1], step))


def _origins(node: ast.AST) -> Iterator[tuple[ast.expr, Chain | None]]:
    """What a statement or expression binds, and the place that its value is taken from."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from ((part, _origin(of)) for part, of in assigned_parts(target, node.value))
    elif isinstance(node, ast.NamedExpr | ast.AnnAssign) and node.value is not None:
        yield node.target, _origin(node.value)
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        target, items = node.target, node.iter
        call = items.func if isinstance(items, ast.Call) else None
        name = getattr(call, "attr", None) or getattr(call, "id", "")
        if name in ("items", "enumerate") and isinstance(target, ast.Tuple):
            target = target.elts[-1]
        if isinstance(items, ast.Call) and name == "enumerate" and items.args:
            items = items.args[0]
        elif isinstance(call, ast.Attribute) and name in ("items", "values"):
            items = call.value
        chain = _origin(items)
        yield target, None if chain is None else (chain[0], (*chain[1], EACH))


_aliases: dict[int, tuple[CodeType, dict[str, Chain]]] = {}


def aliases_of(code: CodeType) -> dict[str, Chain]:
    """The local names of a function that are bound once, to what is taken from a place: ``state``
    of ``state = self.state[p]``, or of ``for state in self.states:``."""
    known = _aliases.get(id(code))
    if known is None or known[0] is not code:
        known = _aliases[id(code)] = code, _read_aliases(code)
    return known[1]


def with_items(
    aliases: dict[str, Chain], node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
) -> dict[str, Chain]:
    """The aliases inside a comprehension, whose names are its own."""
    inner = dict(aliases)
    for loop in node.generators:
        for target, origin in _origins(loop):
            for name in ast.walk(target):
                if isinstance(name, ast.Name):
                    inner.pop(name.id, None)
            if isinstance(target, ast.Name) and origin is not None:
                root, steps = inner.get(origin[0], (origin[0], ()))
                inner[target.id] = root, (*steps, *origin[1])
    return inner


def _read_aliases(code: CodeType) -> dict[str, Chain]:
    function = function_of(code)
    if function is None:
        return {}
    nodes = list(inner_nodes(function))
    # `table |= {"n": 1}` binds the name to what it holds already.
    merged = {
        id(node.target)
        for node in nodes
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.BitOr)
        if isinstance(node.value, ast.Dict)
    }
    bound = [
        node.id
        for node in nodes
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in merged
    ]
    own = set(code.co_varnames[code.co_argcount + code.co_kwonlyargcount :])
    aliases: dict[str, Chain] = {}
    for node in nodes:
        for target, origin in _origins(node):
            is_once = isinstance(target, ast.Name) and target.id in own
            if origin is None or not is_once or bound.count(target.id) > 1:  # type: ignore[attr-defined]
                continue
            root, steps = aliases.get(origin[0], (origin[0], ()))
            if root != target.id:  # type: ignore[attr-defined]
                aliases[target.id] = root, (*steps, *origin[1])  # type: ignore[attr-defined]
    return aliases


_PASSING_ON = frozenset(("enumerate", "iter", "list", "reversed", "set", "sorted", "tuple", "zip"))
"""Functions of Python that return all items of their arguments."""
_VIEWS = frozenset(("items", "keys", "values"))


def _looped_over(node: ast.expr) -> Iterator[ast.expr]:
    """The containers that a loop over an expression goes through."""
    match node:
        case ast.Call(ast.Name(name), arguments) if name in _PASSING_ON:
            for argument in arguments:
                yield from _looped_over(argument)
        case ast.Call(ast.Attribute(container, name), []) if name in _VIEWS:
            yield container
        case ast.Subscript(container, ast.Slice()):
            yield from _looped_over(container)
        case _:
            yield node


def keys_of_loop(target: ast.expr, iterated: ast.expr) -> dict[str, Chain]:
    """The variables of a loop that are keys of a dict, each with the name of the dict: of ``for key
    in kept``, if that is one."""
    match target, iterated:
        # A key of `sorted` may depend on the values.
        case _, ast.Call(ast.Name(name), [inner], []) if name in _PASSING_ON - {"enumerate", "zip"}:
            return keys_of_loop(target, inner)
        case ast.Tuple([_, key]), ast.Call(ast.Name("enumerate"), [inner, *_]):
            return keys_of_loop(key, inner)
        case ast.Tuple([key, _]), ast.Call(ast.Attribute(kept, "items"), []):
            return keys_of_loop(key, kept)
        case _, ast.Call(ast.Attribute(kept, "keys"), []):
            return keys_of_loop(target, kept)
        case ast.Name(name), _ if (chain := name_chain(iterated)) is not None:
            return {name: chain}
    return {}


def _asked_whether_empty(test: ast.expr) -> Iterator[ast.expr]:
    """The names in a condition that are asked for their truth."""
    match test:
        case ast.BoolOp(_, values):
            for value in values:
                yield from _asked_whether_empty(value)
        case ast.UnaryOp(ast.Not(), value):
            yield from _asked_whether_empty(value)
        case _:
            yield test


def _is_positive(node: ast.expr) -> bool:
    value = node.value if isinstance(node, ast.Constant) else None
    return isinstance(value, int | float) and value > 0


def _adds_to(target: ast.expr, value: ast.expr) -> bool:
    """Whether what is assigned is the target and a positive constant: ``n = n + 1``."""
    place = name_chain(target)
    return (
        place is not None
        and isinstance(value, ast.BinOp)
        and isinstance(value.op, ast.Add)
        and name_chain(value.left) == place
        and _is_positive(value.right)
    )


_IN_PLACE: dict[type[ast.operator], str] = {
    ast.Add: "add_", ast.Sub: "sub_", ast.Mult: "mul_", ast.Div: "div_",
}  # fmt: skip


def changed_by(file: str, line: int) -> str | None:
    """The method of a tensor that changes it as an assignment at a line changes a number: ``add_``
    for ``self.t += dt`` and ``t = min(t + dt, 1.0)``."""
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.AugAssign) and node.lineno == line:
            return _IN_PLACE.get(type(node.op))
        if isinstance(node, ast.Assign) and node.lineno == line:
            places = [name_chain(target) for target in node.targets]
            for part in ast.walk(node.value):
                if isinstance(part, ast.BinOp) and name_chain(part.left) in places:
                    return _IN_PLACE.get(type(part.op))
    return None


def _is_written_out(value: ast.expr) -> bool:
    """Whether a value depends on nothing: ``0``, ``-1``, ``[]``, ``[0] * 8``."""
    return not any(isinstance(node, ast.Name | ast.Call) for node in ast.walk(value))


def _is_whole(key: ast.expr) -> bool:
    """``[:]``."""
    return isinstance(key, ast.Slice) and key.lower is key.upper is key.step is None


class _Uses(ast.NodeVisitor):
    def __init__(self, code: CodeType) -> None:
        self.code, self.aliases = code, aliases_of(code)
        self.uses: list[Use] = []
        self.tested = self.computed = self.resets = self.rises = self.removes = False
        self.setter = self.method = ""
        count = code.co_argcount + code.co_kwonlyargcount
        self.arguments = set(code.co_varnames[:count])
        self.locals = set(code.co_varnames) | set(code.co_cellvars)
        if code.co_name == "<module>":
            self.locals = set()

    def _scope(self, name: str) -> str:
        if name in self.code.co_freevars:
            return "closure"
        if name in self.arguments:
            return "argument"
        return "local" if name in self.locals else "global"

    def _use(
        self,
        node: ast.expr,
        *,
        written: bool = False,
        called: bool = False,
        in_place: bool = False,
    ) -> bool:
        """Note a name; False if there may be others in it. ``in_place``: what it leads to is
        changed."""
        chain = name_chain(node)
        if chain is None:
            return False
        self._add(
            chain,
            node.lineno,
            written=written,
            called=called,
            in_place=in_place,
            name=self._computed_name(node),
        )
        return ONE not in chain[1]

    def _computed_name(self, node: ast.expr) -> str:
        """The expression that is the name of an attribute; "" if there is none, or several."""
        names = [
            call.args[1]
            for call in ast.walk(node)
            if isinstance(call, ast.Call) and _step_of_call(call) == ATTRIBUTES
            if len(call.args) > 1
        ]
        if len(names) != 1:
            return ""
        name = names[0]
        end = name.end_lineno or 0, name.end_col_offset or 0
        return text_at((self.code.co_filename, name.lineno, name.col_offset, *end))

    def _removal(self, node: ast.expr) -> bool:
        """Note what is removed; as ``_use``."""
        self.removes = True
        is_known = self._use(node, written=True)
        self.removes = False
        return is_known

    def _set(self, setter: str, node: ast.expr) -> bool:
        """Note what `setattr` or `delattr` changes; as ``_use``."""
        self.setter = setter
        is_known = self._removal(node) if setter == "delattr" else self._use(node, written=True)
        self.setter = ""
        return is_known

    def _add(
        self,
        chain: Chain,
        line: int,
        *,
        written: bool = False,
        called: bool = False,
        in_place: bool = False,
        counted: str = "",
        name: str = "",
    ) -> None:
        root, steps = chain
        if root in self.aliases and (steps or in_place or counted):
            root, origin = self.aliases[root]
            steps = *origin, *steps
        scope = self._scope(root)
        resets, rises, removes = (written and x for x in (self.resets, self.rises, self.removes))
        how = written, self.tested, self.computed, called, resets, rises, removes, counted
        setter = self.setter if written else ""
        method = self.method if written else ""
        self.uses.append(
            Use(
                root,
                scope,
                steps,
                line,
                *how,
                name=name,
                setter=setter,
                method=method,
                in_place=in_place,
            )
        )

    def _count(self, nodes: Iterable[ast.expr], counted: str) -> None:
        """Note the containers among expressions, whose number of items is asked."""
        for node in nodes:
            chain = name_chain(node)
            if chain is not None and ONE not in chain[1]:
                self._add(chain, node.lineno, counted=counted)

    def _change(self, node: ast.expr) -> None:
        """What it leads to is read and changed: by a method, or in place."""
        origin = _origin(node)
        if origin is not None:
            self._add(origin, node.lineno, written=True, in_place=True)
            self._add(origin, node.lineno, in_place=True)
        if name_chain(node) is None:
            self.visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            for part, value in assigned_parts(target, node.value):
                self.resets = _is_written_out(value)
                self.rises = _adds_to(part, value)
                self.visit(part)
        self.resets = self.rises = False
        self.visit(node.value)

    def visit_Attribute(self, node: ast.Attribute | ast.Subscript | ast.Name) -> None:
        is_removed = isinstance(node.ctx, ast.Del) and not isinstance(node, ast.Name)
        is_written = is_removed or isinstance(node.ctx, ast.Store)
        if self._removal(node) if is_removed else self._use(node, written=is_written):
            return
        if is_written and isinstance(node, ast.Subscript):
            # One item is set, or all of them.
            outer, self.resets = self.resets, _is_whole(node.slice)
            self._use(node.value, written=True, in_place=True)
            self.resets = outer
        self.generic_visit(node)

    visit_Subscript = visit_Name = visit_Attribute  # noqa: N815

    def visit_BinOp(self, node: ast.BinOp | ast.Compare) -> None:
        outer, self.computed = self.computed, True
        self.generic_visit(node)
        self.computed = outer

    visit_Compare = visit_BinOp  # noqa: N815

    def visit_ListComp(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
    ) -> None:
        for loop in node.generators:
            self._count(_looped_over(loop.iter), "loop")
        outer, self.aliases = self.aliases, with_items(self.aliases, node)
        self.generic_visit(node)
        self.aliases = outer

    visit_SetComp = visit_GeneratorExp = visit_DictComp = visit_ListComp  # noqa: N815

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if not self._use(node.target):
            self._change(node.target)
        self.rises = isinstance(node.op, ast.Add) and _is_positive(node.value)
        self.visit(node.target)
        self.rises = False
        self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        function, assigned = node.func, set_by(node)
        if isinstance(function, ast.Name) and function.id in ("len", "sum"):
            self._count(node.args[:1], "length" if function.id == "len" else "loop")
        if self._use(node) or (
            assigned is not None and self._set(getattr(function, "id", ""), assigned)
        ):
            for argument in node.args[1:]:
                self.visit(argument)
            return
        if isinstance(function, ast.Attribute) and function.attr in CHANGES:
            self.resets, self.method = function.attr == "clear", function.attr
            self._change(function.value)
            self.resets, self.method = False, ""
            popped = popped_by(node)
            if popped is not None:
                self._removal(popped)
        elif not self._use(function, called=True):
            self.visit(function)
        elif isinstance(function, ast.Attribute):
            self._use(function.value)
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            self.visit(argument)

    def generic_visit(self, node: ast.AST) -> None:
        parts = branches_of(node)
        if parts is None:
            super().generic_visit(node)
            return
        condition, branches = parts
        before, self.tested = self.tested, True
        if isinstance(node, ast.For):
            self._count(_looped_over(condition), "loop")
        else:
            self._count(_asked_whether_empty(condition), "empty")
        self.visit(condition)
        self.tested = before
        for statement in itertools.chain(*branches):
            self.visit(statement)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Another code object."""

    visit_Lambda = visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef  # type: ignore[assignment]  # noqa: N815


_uses: dict[int, tuple[CodeType, tuple[Use, ...]]] = {}


def uses_of(code: CodeType, scope: str | None = None) -> tuple[Use, ...]:
    """What the code reads and writes that outlives one call of it; () without source. With
    ``scope`` what it reads and writes there: ``local``."""
    known = _uses.get(id(code))
    if known is None or known[0] is not code:
        visitor = _Uses(code)
        for node in functions_of(code):
            body = [node.body] if isinstance(node, ast.Lambda) else node.body
            for statement in body:
                visitor.visit(statement)
        known = _uses[id(code)] = code, tuple(visitor.uses)
    return tuple(use for use in known[1] if (use.scope == scope if scope else use.scope != "local"))


def memory_set_in(code: CodeType) -> list[tuple[str, int]]:
    """What the code gives other memory, as it is written, and the line: by assigning to the
    ``data`` of a tensor, or by a function of PyTorch that does."""
    uses = [*uses_of(code), *uses_of(code, "local")]
    data = ("attribute", "data")
    written = (use for use in uses if use.written and not use.in_place)
    assigned = [(use.text, use.line) for use in written if use.steps[-1:] == (data,)]
    function = function_of(code)
    calls = [] if function is None else inner_nodes(function)
    given = (
        (ast.unparse(node), call.lineno)
        for call in calls
        if isinstance(call, ast.Call)
        for node in _given_memory(call)
        if node is not None
    )
    return [*assigned, *given]


def _given_memory(call: ast.Call) -> list[ast.expr | None]:
    """The tensors, the parameters, or the module, to which a function of PyTorch gives other
    memory."""
    name = getattr(call.func, "attr", None) or getattr(call.func, "id", "")
    words = {word.arg: word.value for word in call.keywords}
    if name == "vector_to_parameters":
        return [words.get("parameters") or next(iter(call.args[1:]), None)]
    if name == "swap_tensors":
        return [*call.args]
    if name == "set_" and isinstance(call.func, ast.Attribute):
        return [call.func.value]
    if name == "load_state_dict" and isinstance(call.func, ast.Attribute):
        assigns = words.get("assign") or next(iter(call.args[2:]), None)
        is_off = isinstance(assigns, ast.Constant) and not assigns.value
        return [] if assigns is None or is_off else [call.func.value]
    return []


def reads_of(code: CodeType, attribute: str) -> list[tuple[str, Position]]:
    """Where the code reads an attribute of what is behind a name: that name, and the place."""
    return [
        (chain[0], (code.co_filename, node.lineno, node.col_offset, node.end_lineno or 0,
                    node.end_col_offset or 0))
        for function in functions_of(code)
        for node in inner_nodes(function)
        if isinstance(node, ast.Attribute) and node.attr == attribute
        if (chain := name_chain(node)) is not None
    ]  # fmt: skip


def uses_of_block(code: CodeType, lines: tuple[int, int]) -> list[Use]:
    """What the ``with`` statement at these lines reads and writes, locals included."""
    visitor = _Uses(code)
    block = block_at(code.co_filename, lines)
    for statement in [] if block is None else block.body:
        visitor.visit(statement)
    return visitor.uses
