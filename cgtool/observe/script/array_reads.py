"""Which lines of a script read the elements of NumPy arrays, and which elements.

An array has the memory of a tensor, and nothing is called when Python reads it. So lines are traced
whose source reads what a name holds: ``view.sum()``, ``float(view[0])``, ``np.mean(view)``. What
only passes an array on (``queue.put(view)``), or makes a view of it, reads nothing.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple

from cgtool.observe.frames import locals_of
from cgtool.observe.lookup import MISSING, resolve
from cgtool.observe.source import functions_of, inner_nodes
from cgtool.observe.uses import Chain, name_chain

_OF_LAYOUT = frozenset(
    (
        "asanyarray", "asarray", "ascontiguousarray", "atleast_1d", "atleast_2d", "atleast_3d",
        "broadcast_to", "byte_bounds", "copyto", "diagonal", "expand_dims", "fill", "frombuffer",
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


class _Read(NamedTuple):
    """An expression that reads the elements of an array, or of a part of one."""

    chain: Chain
    keys: tuple[ast.expr, ...]
    """Of the subscripts behind the name."""
    reads: bool
    """False if only the element that the last key selects is read."""
    function: str
    """The module whose function it is passed to, as it is written; empty for none."""


class ArrayReads:
    """Calls ``on_read`` with each array that a line is about to read. Follows the lines of a
    ``LineTrace``."""

    def __init__(self, on_read: Callable[[Any], None]) -> None:
        self._on_read = on_read
        self._reads: dict[int, tuple[CodeType, dict[int, list[_Read]]]] = {}
        """By id of a function, and line."""

    def follows(self, code: CodeType) -> bool:
        return bool(self._reads_in(code))

    def on_event(self, frame: FrameType, event: str, _argument: Any) -> None:
        reads = self._reads_in(frame.f_code).get(frame.f_lineno, ()) if event == "line" else ()
        if not reads:
            return
        names = locals_of(frame)
        for read in reads:
            array = _array_of(read, names, frame.f_globals)
            if array is not None:
                self._on_read(array)

    def _reads_in(self, code: CodeType) -> dict[int, list[_Read]]:
        known = self._reads.get(id(code))
        if known is None:
            lines: dict[int, list[_Read]] = {}
            for function in functions_of(code):
                for line, read in _reads_of(function):
                    lines.setdefault(line, []).append(read)
            known = self._reads[id(code)] = code, lines
        return known[1]


def _array_of(read: _Read, names: dict[str, Any], names_of_module: dict[str, Any]) -> Any:
    """The array whose elements are read; None if it is something else, or not known."""

    def look_up(chain: Chain) -> Any:
        root, steps = chain
        return resolve(names.get(root, names_of_module.get(root, MISSING)), steps)

    value = look_up(read.chain)
    if not _is_array(value):
        return None
    if read.function:
        module = look_up((read.function, ()))
        if str(getattr(module, "__name__", "")).partition(".")[0] != "numpy":
            return None
    keys = [_key(key, look_up) for key in read.keys]
    if MISSING in keys:
        return None
    for key in keys:
        try:
            outer, value = value, value[key]
        except (IndexError, TypeError, ValueError):
            return None
        if not _is_array(value):
            # An element: the part of one item that it is.
            return _part(outer, key)
    return value if read.reads else None


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"


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


def _key(node: ast.expr, look_up: Callable[[Chain], Any]) -> Any:
    """The value of a key that is made of numbers, names and slices; ``MISSING`` for others."""
    match node:
        case ast.Constant(value):
            return value
        case ast.UnaryOp(ast.USub(), ast.Constant(int(value))):
            return -value
        case ast.Tuple(parts):
            keys = tuple(_key(part, look_up) for part in parts)
            return MISSING if MISSING in keys else keys
        case ast.Slice(lower, upper, step):
            ends = [None if each is None else _key(each, look_up) for each in (lower, upper, step)]
            return MISSING if MISSING in ends else slice(*ends)
    chain = name_chain(node)
    number = MISSING if chain is None else look_up(chain)
    return number if type(number) is int else MISSING


def _reads_of(function: ast.AST) -> Iterator[tuple[int, _Read]]:
    """The expressions of a function that read an array, if their name holds one, with the lines at
    whose start they are still to be read, and nothing else is called before."""
    calls: dict[int, list[int]] = {}
    for node in inner_nodes(function):
        if isinstance(node, ast.Call):
            calls.setdefault(node.end_lineno or 0, []).append(node.end_col_offset or 0)
    for node in inner_nodes(function):
        for part, reads, module in _read_by(node):
            keys: list[ast.expr] = []
            inner = part
            while isinstance(inner, ast.Subscript):
                keys.insert(0, inner.slice)
                inner = inner.value
            chain = name_chain(inner)
            # A call before it on this line may wait for the copy.
            is_first = all(end > part.col_offset for end in calls.get(part.lineno, ()))
            if chain is not None and is_first:
                yield part.lineno, _Read(chain, tuple(keys), reads, module)


def _read_by(node: ast.AST) -> Iterator[tuple[ast.expr, bool, str]]:
    """The parts of an expression that it reads, as of ``_Read``: the part, whether all of it is
    read, and the module of the function."""
    match node:
        case ast.Call(ast.Attribute(array, name), arguments):
            if name not in _OF_LAYOUT:
                yield array, True, ""
                if isinstance(array, ast.Name):
                    yield from ((argument, True, array.id) for argument in arguments)
        case ast.Call(ast.Name(name), arguments) if name in _READING and hasattr(builtins, name):
            yield from ((argument, True, "") for argument in arguments)
        case ast.BinOp(left, _, right):
            yield from ((each, True, "") for each in (left, right))
        case ast.Compare(left, operators, others):
            if not isinstance(operators[0], ast.Is | ast.IsNot):
                yield from ((each, True, "") for each in (left, *others))
        case ast.UnaryOp(_, value) | ast.FormattedValue(value) | ast.AugAssign(_, _, value):
            yield value, True, ""
        case ast.For(_, values) | ast.comprehension(_, values):
            yield values, True, ""
        case ast.Subscript(_, _, ast.Load()):
            yield node, False, ""
