"""Which lines of a script read the elements of NumPy arrays, and which elements.

An array has the memory of a tensor, and nothing is called when Python reads it. So lines are traced
whose source reads what a name holds: ``view.sum()``, ``float(view[0])``, ``np.mean(view)``,
``out[:] = view``. A call of anything else that is written in C, or belongs to Python
(``file.write(view)``), has read the array if afterwards nobody else refers to it: what makes a view
of it, or passes it on (``queue.put(view)``), keeps it.
"""

from __future__ import annotations

import ast
import builtins
import collections
import operator
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FrameType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
)
from typing import Any, NamedTuple

import torch

from cgtool.model.capture import Frames
from cgtool.observe.frames import frames_at, is_internal, locals_of
from cgtool.observe.lookup import MISSING, resolve
from cgtool.observe.source import Functions, functions_of, inner_nodes

_OF_LAYOUT = frozenset(
    (
        "asanyarray", "asarray", "ascontiguousarray", "atleast_1d", "atleast_2d", "atleast_3d",
        "broadcast_to", "byte_bounds", "diagonal", "expand_dims", "fill", "frombuffer",
        "itemset", "may_share_memory", "moveaxis", "ndim", "put", "ravel", "reshape", "resize",
        "rollaxis", "setfield", "setflags", "shape", "shares_memory", "size", "split", "squeeze",
        "swapaxes", "transpose", "view",
    )
)  # fmt: skip
"""Functions and methods of NumPy that make a view of an array, ask about its layout, or write."""
_READING = frozenset(
    (
        "abs", "all", "any", "bool", "bytes", "complex", "divmod", "float", "format", "int", "list",
        "max", "min", "pow", "print", "repr", "round", "set", "sorted", "str", "sum", "tuple",
    )
)  # fmt: skip
"""Functions of Python that read their arguments at once."""


_VIEWS = frozenset(("ravel", "reshape", "squeeze", "swapaxes", "transpose"))
"""Methods of arrays that only make another array of the same memory."""
_TARGETS = frozenset(("copyto", "fill_diagonal", "place", "put_along_axis", "putmask"))
"""Functions of NumPy that write their first argument."""
_HOLDERS = (list, tuple, dict, set, frozenset, collections.deque)
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_IN_C = BuiltinFunctionType, MethodDescriptorType, ClassMethodDescriptorType
_NOT_READING = frozenset(("gc", "inspect", "logging", "sys", "torch", "typing"))
"""Packages whose functions ask about an object, read it only perhaps, or make a tensor of its
memory, which a stream may read."""
_MOST_ITEMS = 64
"""Of a list of arrays."""


class _Read(NamedTuple):
    """An expression that may read the elements of an array, or of a part of one."""

    part: ast.expr
    whole: bool = True
    """False if only the element that its last key selects is read."""
    function: ast.expr | None = None
    """What it is passed to."""
    position: int | None = None
    """Which argument it is; None of one that has a name."""
    target: ast.Subscript | None = None
    """The subscript that it is assigned to."""


class _Line(NamedTuple):
    """What a statement may read on one line."""

    statement: ast.stmt
    reads: list[_Read]


@dataclass(eq=False)
class _Call:
    """A call that a line makes: it has read an array, or keeps it."""

    array: Any
    line: int
    statement: ast.stmt
    kept: list[Any]
    """What the names held before to which the line binds its results: it may refer to the array,
    and is not to be freed during the call."""
    references: int = 0
    """Before the call."""

    def count_references(self) -> int:
        """To the array, and to those whose memory it shows; with some of our own."""
        count = sys.getrefcount(self.array)
        shown = self.array.base
        while is_array(shown):
            count += sys.getrefcount(shown)
            shown = shown.base
        return count

    def spans(self, line: int) -> bool:
        """Whether a line is one of its statement, or of the head of one."""
        body = getattr(self.statement, "body", None)
        end = body[0].lineno - 1 if body else self.statement.end_lineno or 0
        return self.statement.lineno <= line <= end


class ArrayReads:
    """Calls ``on_read`` with each array that a line is about to read, or has read, with the frames
    of the line. ``is_awaited`` says whether it matters that an array is read; nothing is done while
    ``is_anything_awaited`` says no. Follows the lines of a ``LineTrace``."""

    def __init__(
        self,
        on_read: Callable[[Any, Frames | None], None],
        is_awaited: Callable[[Any], bool],
        is_anything_awaited: Callable[[], bool],
    ) -> None:
        self._on_read = on_read
        self._is_awaited = is_awaited
        self._is_anything_awaited = is_anything_awaited
        self._lines: dict[int, tuple[CodeType, dict[int, list[_Line]]]] = {}
        """By id of a function, and line."""
        self._calls: dict[int, list[_Call]] = {}
        """By id of a frame: those of the line that it is at."""

    def follows(self, code: CodeType) -> bool:
        return bool(self._lines_of(code))

    def on_event(self, frame: FrameType, event: str, _argument: Any) -> None:
        if self._calls:
            self._look_after(frame, event)
        lines = self._lines_of(frame.f_code).get(frame.f_lineno, ()) if event == "line" else ()
        if not lines or not self._is_anything_awaited():
            return
        self._look_at(frame, lines)
        # By now nothing of ours refers to the arrays.
        for call in self._calls.get(id(frame), ()):
            call.references = call.references or call.count_references()

    def _look_at(self, frame: FrameType, lines: list[_Line]) -> None:
        scope = _Scope(frame)
        for statement, reads in lines:
            for read in reads:
                function = scope.function(read.function)
                for array in scope.arrays(read, function):
                    is_read = scope.reads(read, function) if self._is_awaited(array) else False
                    if is_read:
                        self._on_read(array, None)
                    elif is_read is None:
                        kept = [scope.value(target) for target in _targets(statement)]
                        call = _Call(array, frame.f_lineno, statement, kept)
                        self._calls.setdefault(id(frame), []).append(call)

    def _look_after(self, frame: FrameType, event: str) -> None:
        """A line may be over."""
        calls = self._calls.pop(id(frame), [])
        goes_on = [
            call
            for call in calls
            if event == "line" and frame.f_lineno != call.line and call.spans(frame.f_lineno)
        ]
        if goes_on:
            self._calls[id(frame)] = goes_on
        for call in calls if event in ("line", "return") else ():
            is_kept = call.count_references() > call.references
            if call not in goes_on and not is_kept and self._is_awaited(call.array):
                scope = _Scope(frame)
                results = (as_array(scope.value(target)) for target in _targets(call.statement))
                if not any(_share_memory(call.array, result) for result in results):
                    self._on_read(call.array, frames_at(frame, call.line))

    def _lines_of(self, code: CodeType) -> dict[int, list[_Line]]:
        known = self._lines.get(id(code))
        if known is None:
            lines: dict[int, list[_Line]] = {}
            for function in functions_of(code):
                for statement, read in _reads_of(function):
                    of_line = lines.setdefault(read.part.lineno, [])
                    if not of_line or of_line[-1].statement is not statement:
                        of_line.append(_Line(statement, []))
                    of_line[-1].reads.append(read)
            known = self._lines[id(code)] = code, lines
        return known[1]


def _share_memory(array: Any, other: Any) -> bool:
    if other is None:
        return False
    (first, end), (first_of_other, end_of_other) = bytes_of_array(array), bytes_of_array(other)
    return first < end_of_other and first_of_other < end


class _Scope:
    """What the expressions of a frame are, without running the user's code."""

    def __init__(self, frame: FrameType) -> None:
        self.frame = frame
        self._names = locals_of(frame)

    def arrays(self, read: _Read, function: _Function | None) -> Iterator[Any]:
        """The arrays that an expression is. Of an element, the part of one item. Functions of NumPy
        read lists of arrays, too."""
        lists = function is not None and function.package == "numpy"
        parts = [read.part]
        if lists and isinstance(read.part, ast.List | ast.Tuple):
            parts = read.part.elts
        for part in parts:
            if isinstance(part, ast.Subscript):
                outer, key = as_array(self.value(part.value)), self.value(part.slice)
                value = MISSING if outer is None else _item(outer, key)
                if value is not MISSING and not is_array(value):
                    yield _part(outer, key)
                    continue
            if read.whole:
                value = self.value(part)
                items = value if lists and type(value) in (list, tuple) else (value,)
                arrays = map(as_array, items[:_MOST_ITEMS])
                yield from (array for array in arrays if array is not None)

    def value(self, node: ast.expr | None) -> Any:
        """Of names, attributes, items and numbers; ``MISSING`` for others."""
        match node:
            case ast.Constant(value):
                return value
            case ast.Name(name):
                of_module = self.frame.f_globals.get(name, vars(builtins).get(name, MISSING))
                return self._names.get(name, of_module)
            case ast.Attribute(inner, name):
                value = self.value(inner)
                if is_array(value):
                    return value.T if name == "T" else MISSING
                return resolve(value, (("attribute", name),))
            case ast.Subscript(inner, key):
                return _item(self.value(inner), self.value(key))
            case ast.UnaryOp(ast.USub(), ast.Constant(int(value))):
                return -value
            case ast.BinOp(left, kind, right) if type(kind) in _OPERATORS:
                numbers = self.value(left), self.value(right)
                is_known = all(type(number) is int for number in numbers)
                try:
                    return _OPERATORS[type(kind)](*numbers) if is_known else MISSING
                except ZeroDivisionError:
                    return MISSING
            case ast.Tuple(parts):
                values = tuple(map(self.value, parts))
                return MISSING if any(value is MISSING for value in values) else values
            case ast.Slice(first, last, step):
                ends = [part and self.value(part) for part in (first, last, step)]
                is_known = all(end is None or type(end) is int for end in ends)
                return slice(*ends) if is_known else MISSING
            case ast.Call(ast.Attribute(inner, name), arguments, []) if name in _VIEWS:
                array, values = self.value(inner), self.value(ast.Tuple(arguments))
                try:
                    return getattr(array, name)(*values) if is_array(array) else MISSING
                except (TypeError, ValueError):
                    return MISSING
            case ast.Call(ast.Name("memoryview"), [inner], []):
                array = as_array(self.value(inner))
                return MISSING if array is None else array
        return MISSING

    def function(self, node: ast.expr | None) -> _Function | None:
        """What is called; None for nothing, or if it is not known."""
        if node is None:
            return None
        value = self.value(node)
        if not isinstance(node, ast.Attribute):
            return None if value is MISSING else _Function(getattr(node, "id", ""), value, MISSING)
        owner = self.value(node.value)
        if value is MISSING and owner is not MISSING:
            # Of methods in C, that of the type.
            tables = map(vars, type(owner).__mro__)
            value = next((each[node.attr] for each in tables if node.attr in each), MISSING)
        return None if value is MISSING else _Function(node.attr, value, owner)

    def reads(self, read: _Read, function: _Function | None) -> bool | None:
        """Whether an expression that is an array is read; None if that shows after the line."""
        if read.target is not None:
            return self._reads_as_stored(read.target)
        if read.function is None:
            return True
        return False if function is None else function.reads(read.position)

    def _reads_as_stored(self, target: ast.Subscript) -> bool:
        """A container of objects gets the array itself, and what has memory its elements."""
        owner = self.value(target.value)
        if isinstance(owner, list):
            return isinstance(target.slice, ast.Slice)
        if isinstance(owner, torch.Tensor):
            return owner.device.type == "cpu"  # in the order of the stream otherwise
        return as_array(owner) is not None


class _Function(NamedTuple):
    """What is called with an array."""

    name: str
    value: Any
    owner: Any
    """The object that it is taken from."""

    @property
    def package(self) -> str:
        owner = self.owner if type(self.owner).__module__ == "numpy" else self.value
        module = getattr(owner, "__module__", None) or type(owner).__module__
        return str(module).partition(".")[0]

    def reads(self, position: int | None) -> bool | None:
        """Whether it reads an argument; None if that shows after the call."""
        if self.package == "numpy":
            return self.name not in _OF_LAYOUT and (position != 0 or self.name not in _TARGETS)
        if self.value is getattr(builtins, self.name, None):
            return self.name in _READING
        if self.package in _NOT_READING or isinstance(self.owner, (*_HOLDERS, torch.Tensor)):
            return False
        function = self.value.__func__ if isinstance(self.value, MethodType) else self.value
        if isinstance(function, FunctionType):
            # The lines of others are traced.
            return None if is_internal(function.__code__) else False
        return None if isinstance(function, _IN_C) else False


def is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"


def as_array(value: Any) -> Any:
    """An array of the memory of an array, or of what Python has for the same; None of others."""
    if is_array(value):
        return value
    if isinstance(value, memoryview | bytearray):
        try:
            return sys.modules["numpy"].asarray(value)
        except (KeyError, ValueError):  # released
            return None
    return None


def bytes_of_array(array: Any) -> tuple[int, int]:
    """The address of its first byte, and of the byte behind its last one."""
    first = end = int(array.ctypes.data)
    if not array.size:
        return first, first
    for size, stride in zip(array.shape, array.strides, strict=True):
        first += min((size - 1) * stride, 0)
        end += max((size - 1) * stride, 0)
    return first, end + int(array.itemsize)


def _part(array: Any, key: Any) -> Any:
    """The part of an array that has only the element of a key."""
    keys = key if isinstance(key, tuple) else (key,)
    if not all(isinstance(each, int) for each in keys):
        return array
    return array[tuple(slice(each, each + 1 or None) for each in keys)]


def _item(value: Any, key: Any) -> Any:
    if type(key) in (int, str):
        return resolve(value, (("item", key),))
    is_key = is_array(value) and type(key) in (slice, tuple)
    try:
        return value[key] if is_key else MISSING
    except (IndexError, TypeError, ValueError):
        return MISSING


def _targets(statement: ast.stmt) -> Iterator[ast.expr]:
    """What a statement binds."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    for target in targets:
        yield from target.elts if isinstance(target, ast.Tuple | ast.List) else (target,)


def _reads_of(function: ast.AST) -> Iterator[tuple[ast.stmt, _Read]]:
    """The expressions of a function that read an array, if they are one, with their statements: at
    the start of their lines, they are still to be read, and nothing else is called before."""
    calls: dict[int, list[int]] = {}
    for node in inner_nodes(function):
        if isinstance(node, ast.Call):
            calls.setdefault(node.end_lineno or 0, []).append(node.end_col_offset or 0)
    for statement, node in _with_statements(function):
        for read in _read_by(node):
            # A call before it on this line may wait for the copy.
            part = read.part
            if all(end > part.col_offset for end in calls.get(part.lineno, ())):
                yield statement, read


def _with_statements(
    node: ast.AST, outer: ast.stmt | None = None
) -> Iterator[tuple[ast.stmt, ast.AST]]:
    """All that a function consists of, each with its innermost statement."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Functions | ast.ClassDef):
            statement = child if isinstance(child, ast.stmt) else outer
            if statement is not None:
                yield statement, child
            yield from _with_statements(child, statement)


def _read_by(node: ast.AST) -> Iterator[_Read]:
    """The parts of an expression or statement that it may read."""
    match node:
        case ast.Call(function, arguments, named):
            if isinstance(function, ast.Attribute) and function.attr not in _OF_LAYOUT:
                yield _Read(function.value)
            for position, argument in enumerate(arguments):
                if isinstance(argument, ast.Starred):
                    yield _Read(argument.value)
                else:
                    yield _Read(argument, function=function, position=position)
            for each in named:
                if each.arg not in (None, "out"):
                    yield _Read(each.value, function=function)
        case ast.Assign(targets, value):
            for target in targets:
                if isinstance(target, ast.Subscript):
                    yield _Read(value, target=target)
        case ast.BinOp(left, _, right):
            yield from map(_Read, (left, right))
        case ast.Compare(left, operators, others):
            if not isinstance(operators[0], ast.Is | ast.IsNot):
                yield from map(_Read, (left, *others))
        case ast.UnaryOp(_, value) | ast.FormattedValue(value) | ast.AugAssign(_, _, value):
            yield _Read(value)
        case ast.For(_, values) | ast.comprehension(_, values):
            yield _Read(values)
        case ast.Subscript(_, _, ast.Load()):
            yield _Read(node, whole=False)
