"""Branches of a script that are not always taken, read from its source."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from cgtool.observe.source import tree_of
from cgtool.observe.uses import assigned_parts

_ORDERS = ast.Lt | ast.LtE | ast.Gt | ast.GtE


def is_taken_now_and_then(file: str, line: int, others: Iterable[int]) -> bool:
    """Whether a line is in a branch that is taken only for some results, where one is greater than
    another, or at each tenth step, and that has none of the other lines."""
    return any(
        node.lineno <= line <= (node.end_lineno or 0)
        and not any(node.lineno <= other <= (node.end_lineno or 0) for other in others)
        and _compares(node.test, tree_of(file))
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.If)
    )


def is_of_the_best(file: str, line: int, name: str) -> bool:
    """Whether a line binds a name, which is read elsewhere too, where a value is greater or less
    than the one that it replaces: ``if score > best_score: best, best_score = out, score``; or on
    such a condition: ``best = out if out.item() > 5 else best``."""
    tree = tree_of(file)
    for node in ast.walk(tree):
        if not isinstance(node, ast.If | ast.Assign):
            continue
        first, last = node.lineno, node.end_lineno or 0
        if not first <= line <= last:
            continue
        keeps = _replaces_what_it_compares(node) if isinstance(node, ast.If) else _may_keep(node)
        if keeps:
            return any(
                name in (getattr(each, "id", ""), getattr(each, "attr", ""))
                and isinstance(each.ctx, ast.Load)
                for each in ast.walk(tree)
                if isinstance(each, ast.Name | ast.Attribute)
                if not first <= each.lineno <= last
            )
    return False


def _may_keep(node: ast.Assign) -> bool:
    """``best = out if out.item() > 5 else best``."""
    return any(
        isinstance(value, ast.IfExp)
        and ast.unparse(to) in (ast.unparse(value.body), ast.unparse(value.orelse))
        and any(_is_order(part) for part in ast.walk(value.test))
        and not _names_in(value.test).isdisjoint(_names_in(value.body, value.orelse))
        for target in node.targets
        for to, value in assigned_parts(target, node.value)
    )


def _is_order(node: ast.AST) -> bool:
    return isinstance(node, ast.Compare) and any(isinstance(op, _ORDERS) for op in node.ops)


def _names_in(*nodes: ast.AST) -> set[str]:
    parts = (part for node in nodes for part in ast.walk(node))
    return {part.id for part in parts if isinstance(part, ast.Name)}


def _replaces_what_it_compares(node: ast.If) -> bool:
    test = node.test
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], _ORDERS):
        return False
    compared = {ast.unparse(test.left), ast.unparse(test.comparators[0])}
    return any(
        {ast.unparse(to), ast.unparse(value)} == compared
        for each in ast.walk(node)
        if isinstance(each, ast.Assign)
        for target in each.targets
        for to, value in assigned_parts(target, each.value)
    )


def _compares(test: ast.expr, tree: ast.Module) -> bool:
    """Whether an expression has an order or a remainder in it, or a name bound to such a one."""
    parts, names = list(ast.walk(test)), _names_in(test)
    parts += [
        part
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Compare | ast.BoolOp)
        if any(isinstance(target, ast.Name) and target.id in names for target in node.targets)
        for part in ast.walk(node.value)
    ]
    return any(
        _is_order(part) or (isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod))
        for part in parts
    )
