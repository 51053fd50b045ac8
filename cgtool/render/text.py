"""Names from a capture as text that can be shown: they may hold anything."""

from __future__ import annotations

from cgtool.model.failure import printable as visible

__all__ = ["cut", "dot_string", "html_text", "visible"]
