"""The code that a capture covers, made into a function that runs it again."""

from __future__ import annotations

import ast
import contextlib
import copy
import dis
import gc
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from types import BuiltinFunctionType, CellType, CodeType, FrameType, FunctionType
from typing import Any

import torch

from cgtool.observe.frames import (
    callers,
    is_internal,
    line_of,
    locals_of,
    position_of,
)
from cgtool.observe.kept_values import MISSING, kept, kept_dict
from cgtool.observe.script.state import GraphedCallable
from cgtool.observe.source import functions_of, tree_of
from cgtool.observe.tensors import tensors_in
from cgtool.torch_compat.private import pytree
from cgtool.torch_compat.weak import Weak

RUNS_AGAIN = "_runs_again"
"""The name of the function that is made."""
_OPTIMIZED = 0x1
"""``CO_OPTIMIZED``: local names are variables of a function."""
_GENERATOR = 0x20
"""``CO_GENERATOR``."""
_SCOPES = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
With = ast.With | ast.AsyncWith
_NOT_OF_BLOCKS = ast.Yield | ast.YieldFrom | ast.Await | ast.Nonlocal | ast.Global
_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


class Block:
    """The statements that a capture covers, in the frame that runs them.

    To be made when the capture begins, and used before the frame goes on after its end.
    """

    def __init__(
        self, frame: FrameType, statements: list[ast.stmt], contexts: Sequence[With]
    ) -> None:
        """``contexts``: the ``with`` statements of the frame around the capture, outermost first.
        Raises SyntaxError for statements that make no function."""
        entered = statements
        for node in reversed(contexts):
            entered = [_with(node, node.items, entered)]
        names = _Names()
        for statement in _in_function(frame, entered):
            names.visit(statement)
        self._code = _code_of(frame, statements, names)
        self._entering = _code_of(frame, entered, names) if contexts else self._code
        self._entered = {_context(frame.f_code, node) for node in contexts}
        self._targets = {text: compile(text, "<target>", "eval") for text in names.targets}
        self._frame = frame
        self._read_first = {*names.read_first}
        self._before = dict(_values_before(frame, names.stored, self._read_first))
        self.used, self._stored = {*names.used}, {*names.stored}
        self._outer = {each for each in _contexts_around(frame) if each[0] is not frame.f_code}

    def roots(self) -> Iterator[tuple[str, Any]]:
        """Objects that it can reach, by their names in its frame."""
        values = {**self._frame.f_globals, **locals_of(self._frame)}
        return ((name, values[name]) for name in sorted(self.used & values.keys()))

    def later(self) -> LaterBlock:
        """At the end of the capture: the same without its frame, which may be gone. Raises Gone if
        functions share what it assigns, or a value is gone or cannot be kept."""
        frame = self._frame
        if _is_shared(self._stored, frame.f_code):
            raise Gone("other functions share what it assigns")
        before = {name: value() for name, value in self._before.items()}
        values = {**frame.f_globals, **locals_of(frame)}
        own = _own_dict(frame.f_code)
        names = {
            name: kept_dict(value) if name == own else kept(before.get(name, value))
            for name, value in values.items()
            if name in self.used and (name in self._read_first or name not in self._stored)
        }
        known = {name: value for name, value in names.items() if value is not None}
        unknown = {each for each in self._read_first if before.get(each) is MISSING}
        unknown |= names.keys() - known.keys()
        unknown |= {*self._entering.co_freevars} - {*known, *self._stored}
        if unknown:
            raise _gone(unknown)
        assigned = _assigned(self._targets, values, {})
        outputs = [(name, [*map(Weak, tensors_in(value))]) for name, value in assigned]
        return LaterBlock(
            self._code,
            self._entering,
            self._entered,
            self._outer,
            self._targets,
            frame.f_globals,
            known,
            outputs,
            _place_of(frame),
            self.used,
        )


_MODES = (
    *("torch.autograd.", "torch.amp.", "torch.cuda", "torch.profiler", "cgtool."),
    *("contextlib", "threading", "_thread"),
)
"""Modules of context managers around a capture that the code does not miss later."""


@dataclass
class LaterBlock:
    """A ``Block`` that runs long after its capture, with the names that it had then: but for
    functions and texts, which choose an op, and which programs do not use again for other things.
    """

    code: CodeType
    entering: CodeType
    """The code that enters ``entered`` itself: for a call outside of these context managers."""
    entered: set[Context]
    """Context managers that its function had entered around the capture."""
    contexts: set[Context]
    """Context managers that the callers of its function had entered."""
    targets: dict[str, CodeType]
    outer: dict[str, Any]
    """Global names."""
    names: dict[str, Callable[[], Any]]
    captured: list[tuple[str, list[Weak[torch.Tensor]]]]
    """Names that the capture has assigned, and their tensors."""
    place: tuple[int, CodeType]
    """Place of its frame."""
    used: set[str]
    """All names in its lines."""
    reused: set[str] = field(default_factory=set)
    """Names that other captured lines have, too, and perhaps another meaning of them."""
    values: dict[str, Any] = field(default_factory=dict)
    cells: dict[str, CellType] = field(default_factory=dict)
    """Its names while it runs, and until they are restored."""

    def outputs(self) -> Outputs:
        """Names that the capture has assigned, and their values, where the tensors are alive."""
        for name, references in self.captured:
            tensors = [reference() for reference in references]
            alive = [tensor for tensor in tensors if tensor is not None]
            if len(alive) == len(tensors):
                yield name, alive

    def note_reused(self, names: set[str]) -> None:
        """The lines of another capture have these names."""
        self.reused |= names

    def note_captured_again(self) -> None:
        """There is another capture of the same lines."""
        self.reused |= self.used

    def roots(self) -> Iterator[tuple[str, Any]]:
        """Objects that it can reach, by name."""
        for name, look_up in self.names.items():
            yield name, look_up()

    def run(self) -> None:
        """Raises Gone if a value is gone."""
        contexts = {*_contexts_around(sys._getframe(1))}
        if not self.contexts <= contexts:
            raise Gone("it was captured in a context that is over")
        code = self.code if self.entered <= contexts else self.entering
        now = _names_at(self.place)
        self.values = {name: look_up() for name, look_up in self.names.items()}
        for name in now.keys() & self.values.keys() - self.reused:
            if isinstance(now[name], _CHOICES) and isinstance(self.values[name], _CHOICES):
                self.values[name] = now[name]
        self.values |= self._arguments_now()
        gone = [name for name, value in self.values.items() if value is MISSING]
        if gone:
            raise _gone(gone)
        self.cells = {name: CellType() for name in code.co_freevars}
        self.outer.update({name: self.values[name] for name in self.values.keys() - self.cells})
        _run(code, self.values, self.cells, self.outer)

    def _arguments_now(self) -> dict[str, Any]:
        """Numbers and texts that the function which captured is given by now, in another call on
        the same object: one graph for all calls has those of the first."""
        code = self.place[1]
        frame = next((each for each in callers(sys._getframe(2)) if each.f_code is code), None)
        now = {} if frame is None else locals_of(frame)
        arguments = _arguments_of(code)
        for owner in arguments[:1]:
            of_now = now.get(owner)
            if not isinstance(of_now, _PLAIN) and self.values.get(owner) is not of_now:
                return {}
        return {
            name: now[name]
            for name in arguments
            if isinstance(self.values.get(name), _PLAIN) and isinstance(now.get(name), _PLAIN)
        }

    def restore_after(self) -> Callable[[], None]:
        """Returns what sets the global names back that ``run`` sets, and forgets what it made."""
        names = {*self.entering.co_names, *self.names}
        before = {name: self.outer[name] for name in names & self.outer.keys()}

        def restore() -> None:
            for name in names & self.outer.keys() - before.keys():
                del self.outer[name]
            self.outer.update(before)
            self.values, self.cells = {}, {}

        return restore

    def assigned(self) -> Outputs:
        return _assigned(self.targets, {**self.outer, **self.values}, self.cells)


@dataclass
class LaterCallable:
    """A callable of ``make_graphed_callables``, which has its arguments in its samples."""

    graphed: GraphedCallable
    result: Any = None

    def run(self) -> None:
        samples = [reference() for reference in self.graphed.samples]
        function = self.graphed.function and self.graphed.function()
        if function is None or function is MISSING or any(each is None for each in samples):
            raise _gone(["its arguments"])
        with torch.enable_grad():
            self.result = function(*pytree.tree_unflatten(samples, self.graphed.structure))

    def outputs(self) -> Outputs:
        """None has a name."""
        return iter(())

    def assigned(self) -> Outputs:
        """Names that ``run`` has assigned, and their values."""
        yield "output", self.result

    def restore_after(self) -> Callable[[], None]:
        """Returns what forgets the result."""
        return partial(setattr, self, "result", None)

    def roots(self) -> Iterator[tuple[str, Any]]:
        """Objects that it can reach, by name."""
        yield "", self.graphed.function and self.graphed.function()

    def note_reused(self, _names: object) -> None:
        """Its names are its own."""

    def note_captured_again(self) -> None:
        """Its names are its own."""


Region = LaterBlock | LaterCallable
"""Captured code that can run again."""


def region_of(block: Block | None, graphed: GraphedCallable | None) -> Region | None:
    """At the end of a capture: the code that was captured; None if that is the backward of a
    callable. Raises Gone if it cannot run again."""
    if graphed is not None:
        return LaterCallable(graphed) if graphed.function is not None else None
    if block is None:
        raise Gone("its lines cannot be run by themselves")
    return block.later()


def _own_dict(code: CodeType) -> str | None:
    """``kwargs`` of a function that takes ``**kwargs``: each call has another one."""
    at = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    return code.co_varnames[at] if code.co_flags & inspect.CO_VARKEYWORDS else None


def _is_shared(names: set[str], code: CodeType) -> bool:
    """Whether a function that is there by now shares one of these names with the function of
    ``code``."""
    if names & {*code.co_freevars}:
        return True
    inner = [
        each
        for each in code.co_consts
        if isinstance(each, CodeType) and names & {*each.co_freevars}
    ]
    return bool(inner) and any(isinstance(each, FunctionType) for each in gc.get_referrers(*inner))


def _place_of(frame: FrameType) -> tuple[int, CodeType]:
    return id(frame), frame.f_code


@cache
def _arguments_of(code: CodeType) -> tuple[str, ...]:
    """The arguments that a function never assigns, so that one call has one value of each."""
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    assigned = {
        each.argval
        for own in (code, *inner)
        for each in dis.get_instructions(own)
        if each.opname in _ASSIGNS
    }
    return tuple(name for name in names if name not in assigned)


def _names_at(place: tuple[int, CodeType]) -> dict[str, Any]:
    """Local variables of a frame that calls this one; empty if ``place`` is not one."""
    running = callers(sys._getframe(1))
    return next((locals_of(each) for each in running if _place_of(each) == place), {})


_PLAIN = (int, float, str)
_ASSIGNS = ("STORE_FAST", "STORE_DEREF", "DELETE_FAST", "DELETE_DEREF")
_CHOICES = (str, FunctionType, BuiltinFunctionType, partial)
Outputs = Iterator[tuple[str, Any]]
"""Names that code assigns, as written, and their values."""


def _run(
    code: CodeType, values: dict[str, Any], cells: dict[str, CellType], outer: dict[str, Any]
) -> None:
    for name, cell in cells.items():
        if name in values:
            cell.cell_contents = values[name]
        else:
            with contextlib.suppress(ValueError):
                del cell.cell_contents
    in_order = tuple(cells[name] for name in code.co_freevars)
    FunctionType(code, outer, RUNS_AGAIN, None, in_order)()


def _assigned(
    targets: dict[str, CodeType], names: dict[str, Any], cells: dict[str, CellType]
) -> Outputs:
    for name, cell in cells.items():
        with contextlib.suppress(ValueError):
            names[name] = cell.cell_contents
    for text, code in targets.items():
        try:
            value = eval(code, names)
        except Exception:
            continue
        yield text, value


def _function(name: str, arguments: Sequence[str], body: list[ast.stmt]) -> ast.stmt:
    given = [ast.arg(each) for each in arguments]
    function: Any = ast.FunctionDef
    made: ast.stmt = function(name, ast.arguments([], given, None, [], [], None, []), body, [])
    return made


def _in_function(frame: FrameType, statements: list[ast.stmt]) -> list[ast.stmt]:
    return [_InFunction(frame).visit(copy.deepcopy(each)) for each in statements]


def _code_of(frame: FrameType, statements: list[ast.stmt], names: _Names) -> CodeType:
    """The code of a function that consists of statements of a frame."""
    body = _in_function(frame, statements)
    own = _local_names(frame, names.stored)
    if names.stored - own:
        body.insert(0, ast.Global(sorted(names.stored - own)))
    if names.stored & own:
        body.insert(0, ast.Nonlocal(sorted(names.stored & own)))
    # Local names are those of a function around it, whose cells are made anew.
    inner = _function(RUNS_AGAIN, [], body)
    outer = _function("_around", sorted(own & {*names.used, "__class__"}), [inner])
    module = ast.fix_missing_locations(ast.Module([outer], []))
    code = compile(module, frame.f_code.co_filename, "exec", dont_inherit=True)
    return _code_in(_code_in(code)).replace(co_qualname=RUNS_AGAIN)


def _code_in(code: CodeType) -> CodeType:
    return next(each for each in code.co_consts if isinstance(each, CodeType))


def _local_names(frame: FrameType, stored: set[str]) -> set[str]:
    """The names that are not global in the code of a frame."""
    code = frame.f_code
    if code.co_flags & _OPTIMIZED:
        return {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    table = frame.f_locals
    return set() if table is frame.f_globals else {*table, *stored, *code.co_freevars}


def block_of(frame: FrameType | None) -> Block | None:
    """The code of a capture that ``frame`` has just begun, or that the user's frames around it
    have by a context manager of their own; None if it is not known, or no function can be made of
    it."""
    for each in callers(frame):
        if is_internal(each.f_code):
            continue
        found = _entered(each) or _until_end(each)
        if found is not None and not _leaves(found[0]):
            try:
                return Block(each, found[0], _contexts_before(each, found[1]))
            except (SyntaxError, ValueError, Gone):
                return None
        if not (each.f_code.co_flags & _GENERATOR or each.f_code.co_name == "__enter__"):
            return None
    return None


class Gone(LookupError):
    """Why code cannot run again."""


def _gone(names: Iterable[str]) -> Gone:
    quoted = ", ".join(name if " " in name else f"`{name}`" for name in sorted(names))
    return Gone(f"{quoted} cannot be kept until then")


def _leaves(statements: list[ast.stmt]) -> bool:
    """Whether a part of them means something in their own function alone."""
    return any(isinstance(node, _NOT_OF_BLOCKS) for each in statements for node in ast.walk(each))


def _values_before(
    frame: FrameType, names: set[str], needed: set[str]
) -> Iterator[tuple[str, Callable[[], Any]]]:
    values = locals_of(frame)
    for name in names & values.keys():
        look_up = kept(values[name])
        if look_up is not None:
            yield name, look_up
        elif name in needed:
            raise _gone([name])


def _entered(frame: FrameType) -> tuple[list[ast.stmt], ast.stmt] | None:
    """The statements that follow in the ``with`` statement whose context the frame enters, and that
    statement."""
    _, line, column, *_ = position_of((frame.f_code, frame.f_lasti))
    found: tuple[list[ast.stmt], ast.stmt] | None = None
    for node in ast.walk(tree_of(frame.f_code.co_filename)):
        if not isinstance(node, ast.With):
            continue
        entered = [
            at
            for at, item in enumerate(node.items)
            if (item.context_expr.lineno, item.context_expr.col_offset) == (line, column)
        ]
        if (node.lineno, node.col_offset) == (line, column):
            # Before CPython 3.12 the position is that of the statement.
            entered = [at for at, item in enumerate(node.items) if _captures(item)]
        if entered or (node.lineno, node.col_offset) == (line, column):
            at = entered[-1] if entered else len(node.items) - 1
            outer = [item for item in node.items[:at] if not _is_mode(item.context_expr, frame)]
            inner = [*outer, *node.items[at + 1 :]]
            found = [_with(node, inner, node.body)] if inner else node.body, node
    return found


def _contexts_before(frame: FrameType, place: ast.stmt) -> list[With]:
    """Context managers that a frame has entered around a statement: a flag that is set for the
    capture, for example. But for modes of PyTorch, which are known (``LiveObjects.modes``).
    Outermost first."""
    found: list[With] = []
    for node in _contexts_of(frame, place.lineno):
        items = [item for item in node.items if not _is_mode(item.context_expr, frame)]
        if node is not place and items:
            found.append(_with(node, items, []))
    return sorted(found, key=lambda node: node.lineno)


def _captures(item: ast.withitem) -> bool:
    """Whether this one of several context managers seems to be the one that captures."""
    text = ast.unparse(item.context_expr).lower()
    return "graph" in text or "captur" in text


def _with(node: With, items: list[ast.withitem], body: list[ast.stmt]) -> With:
    # `async with` is a syntax error outside of a coroutine.
    return ast.copy_location(type(node)(items, body), node)


def _until_end(frame: FrameType) -> tuple[list[ast.stmt], ast.stmt] | None:
    """The statements between the call of ``capture_begin`` that the frame makes, and that of
    ``capture_end`` behind it; and the first one of these calls."""
    _, line, *_ = position_of((frame.f_code, frame.f_lasti))
    for function in functions_of(frame.f_code):
        for node in ast.walk(function):
            for _, statements in ast.iter_fields(node):
                if not (isinstance(statements, list) and _calls(statements, line)):
                    continue
                begin = next(at for at, each in enumerate(statements) if _spans(each, line))
                for end in range(begin + 1, len(statements)):
                    if _ends(statements[end]) and end > begin + 1:
                        return statements[begin + 1 : end], statements[begin]
    return None


def _calls(statements: list[Any], line: int) -> bool:
    return any(isinstance(each, ast.Expr) and _spans(each, line) for each in statements)


def _spans(node: ast.AST, line: int) -> bool:
    return getattr(node, "lineno", 0) <= line <= (getattr(node, "end_lineno", 0) or 0)


def _ends(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr == "capture_end"
    )


class _Names(ast.NodeVisitor):
    """The names of a block, in the order in which it uses them."""

    def __init__(self) -> None:
        self.stored: set[str] = set()
        self.read_first: list[str] = []
        """Names that are assigned after they were read."""
        self.targets: list[str] = []
        """Names that are assigned, as written."""
        self.used: set[str] = set()
        """All of them, also in functions of its own."""
        self._read: set[str] = set()
        self._inner = 0
        """In how many functions of its own."""

    def _store(self, name: str) -> None:
        if self._inner:
            return
        if name in self._read and name not in self.stored:
            self.read_first.append(name)
        self.stored.add(name)

    def visit_Name(self, node: ast.Name) -> None:
        self.used.add(node.id)
        if isinstance(node.ctx, ast.Load):
            self._read.add(node.id)
        else:
            self._store(node.id)
            self._target(node)

    def _target(self, node: ast.expr) -> None:
        if not self._inner and isinstance(getattr(node, "ctx", None), ast.Store):
            self.targets.append(ast.unparse(node))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.visit(node.value)
        self._target(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.visit(node.value)
        self.visit(node.slice)
        self._target(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self.visit(target)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._read.add(node.target.id)
        self.visit(node.value)
        self.visit(node.target)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        self.visit(node.target)

    def visit_For(self, node: ast.For) -> None:
        for part in (node.iter, node.target, *node.body, *node.orelse):
            self.visit(part)

    def visit_alias(self, node: ast.alias) -> None:
        self._store((node.asname or node.name).partition(".")[0])

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self._store(node.name)
        self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        is_scope = isinstance(node, _SCOPES | _COMPREHENSIONS)
        if is_scope and hasattr(node, "name"):
            self._store(node.name)
        self._inner += is_scope
        super().generic_visit(node)
        self._inner -= is_scope


class _InFunction(ast.NodeTransformer):
    """Means what the block means in its class: ``super()``, and names with two underscores."""

    def __init__(self, frame: FrameType) -> None:
        code: CodeType = frame.f_code
        self._self = code.co_varnames[0] if code.co_argcount else ""
        owner = code.co_qualname.split(".")[-2:-1]
        self._class = owner[0].lstrip("_") if owner and owner[0] != "<locals>" else ""

    def _mangled(self, name: str) -> str:
        is_private = self._class and name.startswith("__") and not name.endswith("__")
        return f"_{self._class}{name}" if is_private else name

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._mangled(node.id)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        node.attr = self._mangled(node.attr)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return node  # its methods mean their own class

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        # A name that is not local in its function cannot be annotated.
        return ast.copy_location(ast.Assign([node.target], node.value), node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        is_super = isinstance(node.func, ast.Name) and node.func.id == "super"
        if is_super and not node.args and self._self:
            node.args = [ast.Name(name, ast.Load()) for name in ("__class__", self._self)]
        return node


Context = tuple[CodeType, int, int]
"""A ``with`` statement: the code, and its line and column."""


def _context(code: CodeType, node: With) -> Context:
    return code, node.lineno, node.col_offset


def _contexts_around(frame: FrameType | None) -> Iterator[Context]:
    """Context managers that a frame and its callers have entered, except for PyTorch's modes."""
    for each in callers(frame):
        if is_internal(each.f_code):
            continue
        for node in _contexts_of(each, line_of((each.f_code, each.f_lasti))):
            if not all(_is_mode(item.context_expr, each) for item in node.items):
                yield _context(each.f_code, node)
        if each.f_code.co_name == "<module>":
            break


def _contexts_of(frame: FrameType, line: int) -> Iterator[With]:
    for function in functions_of(frame.f_code):
        for node in ast.walk(function):
            if isinstance(node, With) and _spans(node, line):
                yield node


def _is_mode(node: ast.expr, frame: FrameType) -> bool:
    """Whether a context manager is of PyTorch or the standard library."""
    if isinstance(node, ast.Call):
        node = node.func
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return False
    value: Any = {**frame.f_globals, **locals_of(frame)}.get(node.id, MISSING)
    for name in names:
        value = inspect.getattr_static(value, name, MISSING)
    if not isinstance(value, type) and not hasattr(value, "__qualname__"):
        value = type(value)
    module = str(getattr(value, "__module__", ""))
    return module.startswith(_MODES)
