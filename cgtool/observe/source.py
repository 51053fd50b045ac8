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


def function_of(code: CodeType) -> Functions | None:
    """The function that ``code`` was compiled from; None without its source."""
    nodes = [node for node in functions_of(code) if not isinstance(node, ast.Module)]
    if len(nodes) > 1:
        # Lambdas that share a line: the innermost one around what the code runs.
        places = [
            (line, column)
            for line, _, column, _ in code.co_positions()
            if line and column is not None and (line, column) > (code.co_firstlineno, 0)
        ]
        first, last = min(places, default=(0, 0)), max(places, default=(0, 0))
        nodes = [
            node
            for node in nodes
            if (node.lineno, node.col_offset) <= first
            and last <= (node.end_lineno or 0, node.end_col_offset or 0)
        ]
    return nodes[-1] if nodes else None


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


@cache
def statement_start(file: str, line: int) -> int:
    """The first line of the innermost statement at a line."""
    return statement_lines(file, line).start


def conditions_around(file: str, line: int) -> int:
    """How many conditions decide whether a line runs."""
    kinds = (ast.If, ast.While, ast.match_case, ast.ExceptHandler)
    return sum(
        any(each.lineno <= line <= (each.end_lineno or 0) for each in guarded)
        for node in ast.walk(tree_of(file))
        if isinstance(node, kinds)
        for guarded in (node.body, getattr(node, "orelse", []))
    )


def statement_lines(file: str, line: int) -> range:
    """The lines of the innermost statement at a line."""
    around = [
        range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return max(around, key=lambda lines: lines.start, default=range(line, line + 1))


def block_at(file: str, lines: tuple[int, int]) -> ast.With | None:
    """The ``with`` statement at these lines."""
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.With) and (node.lineno, node.end_lineno) == lines:
            return node
    return None


def runs_after(line: int, code: CodeType, now: int) -> bool:
    """Whether a line of a function that has come to the line ``now`` may still run."""
    return line >= now or in_one_loop(code, line, now)


def in_one_loop(code: CodeType, *lines: int) -> bool:
    """Whether a loop of a function has all of these lines."""
    return any(
        isinstance(node, ast.For | ast.AsyncFor | ast.While)
        and node.lineno <= min(lines)
        and max(lines) <= (node.end_lineno or 0)
        for function in functions_of(code)
        for node in inner_nodes(function)
    )


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


def text_at(position: Position) -> str:
    """The source of an expression, as far as its first line goes."""
    file, line, column, last, end = position
    text = linecache.getline(file, line).encode()
    return text[column : end if line == last else None].decode(errors="replace").strip()


def call_at(position: Position) -> ast.Call | None:
    """The call that an expression is; None if it is something else, or has no source."""
    for node in ast.walk(tree_of(position[0])):
        if isinstance(node, ast.Call) and position[1:] == (
            node.lineno, node.col_offset, node.end_lineno, node.end_col_offset
        ):  # fmt: skip
            return node
    return None


def nodes_around(position: Position) -> list[ast.expr | ast.stmt]:
    """What the expression at a position is a part of, innermost first."""
    start, end = position[1:3], position[3:]
    around = [
        node
        for node in ast.walk(tree_of(position[0]))
        if isinstance(node, ast.expr | ast.stmt)
        and (node.lineno, node.col_offset) <= start
        and end <= (node.end_lineno or 0, node.end_col_offset or 0)
        and (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset) != position[1:]
    ]
    return around[::-1]


def called_at(position: Position) -> str:
    """``istft`` of ``torch.istft(x, 32)``: the function that the expression at a position calls; ""
    if it is not a call, or has no source."""
    call = call_at(position)
    function = call.func if call is not None else None
    return str(getattr(function, "attr", None) or getattr(function, "id", ""))


def indexed_by(file: str, line: int, name: str) -> list[ast.expr]:
    """What an expression at a line indexes with a name: ``slots`` of ``slots[self.slot]``."""
    return [
        node.value
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Subscript)
        and node.lineno <= line <= (node.end_lineno or 0)
        and any(
            isinstance(part, ast.Name | ast.Attribute | ast.Subscript) and ast.unparse(part) == name
            for part in ast.walk(node.slice)
        )
    ]


def is_condition(file: str, line: int) -> bool:
    """Whether a condition, or what a loop goes over, is on this line of a file."""
    return any(
        (parts := branches_of(node)) is not None
        and parts[0].lineno <= line <= (parts[0].end_lineno or 0)
        for node in ast.walk(tree_of(file))
    )


def is_asserted(file: str, line: int) -> bool:
    """Whether an ``assert`` is on this line of a file."""
    asserts = [node for node in ast.walk(tree_of(file)) if isinstance(node, ast.Assert)]
    return _spans([*asserts], line)


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


def decided_by(file: str, line: int) -> list[range]:
    """The lines of what decides whether a line runs: conditions around it, those before it that
    leave the function or the loop, and what is tried where the line is in an ``except``."""
    tree = tree_of(file)
    around = [node for node in ast.walk(tree) if isinstance(node, Functions)]
    around = [node for node in around if _spans([node], line)]
    scope = max(around, key=lambda node: node.lineno, default=tree)
    deciding: list[ast.stmt | ast.expr] = []
    for node in inner_nodes(scope):
        parts = branches_of(node)
        if isinstance(node, ast.Try):
            deciding += node.body if _spans([*node.handlers], line) else []
        elif isinstance(node, ast.BoolOp | ast.IfExp):
            is_here = statement_start(file, node.lineno) == statement_start(file, line)
            deciding += [node] if is_here else []
        elif parts is not None and not isinstance(node, ast.For):
            test, branches = parts
            leaves = isinstance(node, ast.If) and isinstance(node.body[-1], _LEAVE)
            is_past = leaves and getattr(node, "end_lineno", 0) < line
            if is_past or any(_spans(branch, line) for branch in branches):
                deciding.append(test)
    return [range(node.lineno, (node.end_lineno or 0) + 1) for node in deciding]


_LEAVE = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def inner_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All that a function's statement consists of, without the functions inside it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Functions | ast.ClassDef):
            yield child
            yield from inner_nodes(child)
