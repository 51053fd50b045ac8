"""How expressions use what the calls inside them return, read from their source."""

from __future__ import annotations

import ast

from cgtool.observe.source import tree_of


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
