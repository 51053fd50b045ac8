"""JSON of reports: ``{"schema": NAME, "schema_version": 1, ...}``."""

from __future__ import annotations

from typing import Any

import msgspec

VERSION = 1


def encode(schema: str, report: Any) -> bytes:
    """A report of an analysis as one indented JSON object, with a newline."""
    body = msgspec.to_builtins(report)
    text = msgspec.json.encode({"schema": schema, "schema_version": VERSION, **body})
    return msgspec.json.format(text, indent=2) + b"\n"
