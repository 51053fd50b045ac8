"""Scripts whose code is moved into one function: what is said of them must not change."""

from __future__ import annotations

import ast
import io
import tokenize

_CALLED = {
    "called": "main()",
    "in a thread": "import threading\n\nthread = threading.Thread(target=main)\nthread.start()\n"
    "thread.join()",
    "in a coroutine": "import asyncio\n\nasyncio.run(main())",
}
WAYS = tuple(_CALLED)
_OF_MODULES = "global ", "globals()", "__main__", "import *", "asyncio", "signal.", "DataLoader"


def in_function(source: str, way: str) -> str | None:
    """The script with its code one line further down, in a function that is called in one of
    ``WAYS``; None for a script whose meaning may change by that."""
    if any(word in source for word in _OF_MODULES):
        return None
    start = 0
    for statement in ast.parse(source).body:
        is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if is_docstring or getattr(statement, "module", "") == "__future__":
            start = statement.end_lineno or 0
    in_strings = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.STRING
        for line in range(token.start[0] + 1, token.end[0] + 1)
    }
    lines = source.splitlines()
    kind = "async def" if way == "in a coroutine" else "def"
    body = [
        line if number in in_strings or not line else f"    {line}"
        for number, line in enumerate(lines[start:], start + 1)
    ]
    return "\n".join([*lines[:start], f"{kind} main():", *body, "", "", _CALLED[way], ""])
