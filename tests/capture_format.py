"""The generated part of docs/capture-format.md: a table for each struct of a capture file.

`UPDATE_GOLD=1 python -m pytest tests/model/test_schema.py` writes it into the page.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from types import ModuleType

import msgspec

from cgtool.model import capture, capture_file, measurements
from cgtool.model.schema import MAX_INT, Field, fields

PAGE = Path(__file__).resolve().parent.parent / "docs" / "capture-format.md"
BEGIN = "## Manifest\n"


def structs(module: ModuleType) -> list[type[msgspec.Struct]]:
    """The structs that a module defines, in order."""
    return [
        item
        for item in vars(module).values()
        if inspect.isclass(item)
        and issubclass(item, msgspec.Struct)
        and item.__module__ == module.__name__
    ]


def render(kinds: list[type[msgspec.Struct]] | None = None) -> str:
    """Markdown of the structs; of all of a capture file unless some are given."""
    if kinds is None:
        described = [*structs(capture), *structs(measurements)]
        kinds = [
            capture_file.Manifest,
            *(kind for kind in described if kind is not capture.Capture),
        ]
    return "\n".join(map(_section, kinds))


def _section(kind: type[msgspec.Struct]) -> str:
    meanings = _docstrings(kind)
    rows = [
        f"| `{field.name}` | `{field.type_name}` | {_facts(field)} | "
        f"{_markdown(meanings.get(field.name, ''))} |".replace("  ", " ")
        for field in fields(kind)
    ]
    head = "| field | type | unit, range or list | meaning |\n|---|---|---|---|"
    lead = _markdown(inspect.getdoc(kind) or "")
    return "\n".join([f"## {kind.__name__}\n", lead, "", head, *rows, ""])


def _facts(field: Field) -> str:
    if field.refers_to is not None:
        return f"index into `{field.refers_to}`"
    least, most = field.bounds
    if least == 0 and most is not None and most < MAX_INT and isinstance(most, int):
        return f"0 to {most}"
    return field.unit or (f"{least:g} or more" if least == 1 else "")


def _docstrings(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The texts under the fields of a class, by field."""
    (body,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in zip(body.body, body.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _markdown(text: str) -> str:
    return " ".join(text.replace("``", "`").split())
