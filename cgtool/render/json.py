"""JSON of reports: ``{"schema": NAME, "schema_version": 1, ...}``."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from cgtool.model.files import encode_json

VERSION = 1
_ACTED_ON = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
"""Characters that JSON allows in a string and that terminals and editors act on: controls and
directions."""


def encode(schema: str, report: Any) -> bytes:
    """A report of an analysis as one indented JSON object, with a newline."""
    body = msgspec.to_builtins(report)
    return plain({"schema": schema, "schema_version": VERSION, **body}, indent=2)


def plain(value: Any, *, indent: int | None = None) -> bytes:
    """JSON with a newline; those characters are escapes, which readers turn back."""
    data = encode_json(value)
    if not data.isascii() or b"\x7f" in data:
        data = _ACTED_ON.sub(lambda match: f"\\u{ord(match[0]):04x}", data.decode()).encode()
    return (data if indent is None else msgspec.json.format(data, indent=indent)) + b"\n"
