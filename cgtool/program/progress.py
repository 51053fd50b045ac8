"""How far objects have come that cannot be restored: iterators, generators, files, and what is tied
to threads."""

from __future__ import annotations

import copy
import functools
import io
import itertools
import queue
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from cgtool.observe.frames import SUSPENDED, suspended_frame
from cgtool.program.inside import is_tied
from cgtool.program.objects import attribute, kind_of

_CACHE: Any = type(functools.lru_cache(id))
_NUMBERS = (bool, int, float, str)


def progress(value: Any) -> object | None:
    """What differs once the object has gone on; None if it does not show, or can be restored."""
    if isinstance(value, SUSPENDED):
        frame = suspended_frame(value)
        return "ended" if frame is None else frame.f_lasti
    if isinstance(value, itertools.cycle):
        with warnings.catch_warnings(), suppress(TypeError):
            warnings.simplefilter("ignore", DeprecationWarning)
            return id(next(copy.copy(value), None))
        return None
    if isinstance(value, queue.SimpleQueue):
        return value.qsize()
    if type(value) is _CACHE:
        return tuple(value.cache_info())
    module = type(value).__module__
    if module == "_io" and not isinstance(value, io.StringIO | io.BytesIO):
        with suppress(OSError, ValueError):
            return int(value.tell())
        return None
    if isinstance(value, Iterator) and module in ("builtins", "itertools"):
        with warnings.catch_warnings(), suppress(TypeError):
            warnings.simplefilter("ignore", DeprecationWarning)
            return _numbers_in(value.__reduce__())
        return None
    table = attribute(value, "__dict__")
    if is_tied(value) and type(table) is dict:
        return {name: part if type(part) in _NUMBERS else id(part) for name, part in table.items()}
    return None


def _numbers_in(reduced: Any) -> object:
    """The numbers in what `copy` would make an iterator of again."""
    if type(reduced) is tuple:
        return tuple(map(_numbers_in, reduced))
    return reduced if type(reduced) is int else type(reduced)


def in_words(path: str, value: Any) -> str:
    """The name of such an object, what it is, and its line if it has code."""
    names = (f"{prefix}_code" for prefix in ("gi", "cr", "ag"))
    code = next((getattr(value, name) for name in names if hasattr(value, name)), None)
    name = f"`{path}`, {kind_of(value)}" if path else kind_of(value)
    if code is None:
        return name
    return f"{name} at {Path(code.co_filename).name}:{code.co_firstlineno}"
