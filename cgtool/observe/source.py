"""The source of functions as a tree, and what is at a line or a position of it."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Sequence
from functools import cache
from types import CodeType

from cgtool.model.collector import CollectorPaused

Position = tuple[str, int, int, int, int]
"""The place of an expression: file, first line and column, last line and column (UTF-8 offsets)."""

Functions = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@cache
def tree_of(file: str) -> ast.Module:
    """The syntax tree of a source file; an empty one if it cannot be read.

    Without the garbage collector: Python 3.11 and 3.12 raise SystemError if what it calls, such as
    a finalizer, makes another tree meanwhile.
    """
    try:
        with CollectorPaused():
            return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def _start(node: Functions) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


@cache
def _functions_in(file: str) -> dict[tuple[int, str], list[Functions]]:
    """The functions of a source file, by first line and name."""
    functions: dict[tuple[int, str], list[Functions]] = {}
    for node in ast.walk(tree_of(file)):
        if isinstance(node, Functions):
            place = _start(node), getattr(node, "name", "<lambda>")
            functions.setdefault(place, []).append(node)
    return functions


def functions_of(code: CodeType) -> Sequence[Functions | ast.Module]:
    """The nodes that ``code`` was compiled from: more than one where lambdas share a line."""
    if code.co_name == "<module>":
        return [tree_of(code.co_filename)]
    return _functions_in(code.co_filename).get((code.co_firstlineno, code.co_name), [])


COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
"""The names of the functions that Python makes of comprehensions."""


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and of the comprehensions in it, which have code of their own before
    Python 3.12; generator expressions have in all versions."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType) and each.co_name in COMPREHENSIONS:
            yield from codes_in(each)


@cache
def names_in(code: CodeType) -> tuple[str, ...]:
    """The globals and attributes that a function names, also in comprehensions, in this order."""
    return tuple(dict.fromkeys(name for each in codes_in(code) for name in each.co_names))


def branches_of(node: ast.AST) -> tuple[ast.expr, list[list[ast.AST]]] | None:
    if isinstance(node, ast.IfExp):
        return node.test, [[node.body], [node.orelse]]
    if isinstance(node, ast.If | ast.While | ast.For):
        condition = node.iter if isinstance(node, ast.For) else node.test
        return condition, [list(node.body), list(node.orelse)]
    return None


def _spans(nodes: list[ast.AST], line: int) -> bool:
    return any(
        getattr(node, "lineno", 0) <= line <= (getattr(node, "end_lineno", 0) or 0)
        for node in nodes
    )


def call_at(position: Position) -> ast.Call | None:
    """The call that an expression is; None if it is something else, or has no source."""
    for node in ast.walk(tree_of(position[0])):
        if isinstance(node, ast.Call) and position[1:] == (
            node.lineno, node.col_offset, node.end_lineno, node.end_col_offset
        ):  # fmt: skip
            return node
    return None


def called_at(position: Position) -> str:
    """``istft`` of ``torch.istft(x, 32)``: the function that the expression at a position calls; ""
    if it is not a call, or has no source."""
    call = call_at(position)
    function = call.func if call is not None else None
    return str(getattr(function, "attr", None) or getattr(function, "id", ""))


def deciding_line(code: CodeType, lines: tuple[int, ...]) -> int | None:
    """The line of the innermost condition that decides between ``lines`` of one function."""
    deciding: int | None = None
    size = 1 << 30
    for function in functions_of(code):
        for node in inner_nodes(function):
            parts = branches_of(node)
            if parts is None:
                continue
            test, branches = parts
            if any(_spans(branch, line) for branch in branches for line in lines):
                extent = (getattr(node, "end_lineno", 0) or 0) - getattr(node, "lineno", 0)
                if extent <= size:
                    size, deciding = extent, test.lineno
    return deciding


def inner_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All that a function's statement consists of, without the functions inside it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Functions | ast.ClassDef):
            yield child
            yield from inner_nodes(child)
