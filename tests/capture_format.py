"""The generated part of docs/capture-format.md: a table for each struct of a capture file.

`UPDATE_GOLD=1 python -m pytest tests/model/test_schema.py` writes it into the page.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from types import ModuleType

import msgspec

from cgtool.model import capture, capture_file, ledger, measurements
from cgtool.model.schema import MAX_INT, Field, fields, flat

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
        described = [*structs(capture), *structs(measurements), *structs(ledger)]
        kinds = [
            capture_file.Manifest,
            *(kind for kind in described if kind not in (capture.CaptureHeader, capture.Capture)),
        ]
    return "\n".join(map(_section, kinds))


def _section(kind: type[msgspec.Struct]) -> str:
    meanings = _docstrings(kind)
    rows = []
    for field, info in zip(fields(kind), msgspec.structs.fields(kind), strict=True):
        type_info = msgspec.inspect.type_info(info.type)
        meaning = _markdown(meanings.get(field.name, ""))
        row = [
            "",
            f"`{field.name}`",
            f"`{type_name(type_info)}`",
            _facts(field, type_info),
            meaning,
        ]
        rows.append(f"{' | '.join(row).strip()} |".replace("  ", " "))
    head = "| field | type | unit, range or list | meaning |\n|---|---|---|---|"
    lead = _markdown(inspect.getdoc(kind) or "")
    return "\n".join([f"## {kind.__name__}\n", lead, "", head, *rows, ""])


def _facts(field: Field, type_info: msgspec.inspect.Type) -> str:
    if field.refers_to is not None:
        return f"index into `{field.refers_to}`"
    least, most = bounds(type_info)
    if least == 0 and most is not None and most < MAX_INT and isinstance(most, int):
        return f"0 to {most}"
    return field.unit or (f"{least:g} or more" if least == 1 else "")


def _docstrings(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The texts under the fields of a class and of those that it extends, by field."""
    texts: dict[str, str] = {}
    for base in kind.__mro__:
        if msgspec.Struct in base.__mro__[1:]:
            texts |= _own_docstrings(base)
    return texts


def _own_docstrings(kind: type) -> dict[str, str]:
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


def type_name(type_: msgspec.inspect.Type) -> str:
    """``int or None``, ``tuple[Node, ...]``."""
    if isinstance(type_, msgspec.inspect.Metadata):
        return type_name(type_.type)
    if isinstance(type_, msgspec.inspect.UnionType):
        return " or ".join(map(type_name, type_.types))
    if isinstance(type_, msgspec.inspect.VarTupleType):
        return f"tuple[{type_name(type_.item_type)}, ...]"
    if isinstance(type_, msgspec.inspect.TupleType):
        return f"tuple[{', '.join(map(type_name, type_.item_types))}]"
    if isinstance(type_, msgspec.inspect.StructType):
        return type_.cls.__name__
    return type(type_).__name__.removesuffix("Type").lower().replace("none", "None")


def bounds(type_: msgspec.inspect.Type) -> tuple[float | None, float | None]:
    """Least and greatest value of a number."""
    numbers = (msgspec.inspect.IntType, msgspec.inspect.FloatType)
    return next(((t.ge, t.le) for t in flat(type_) if isinstance(t, numbers)), (None, None))


def _markdown(text: str) -> str:
    return " ".join(text.replace("``", "`").split())
