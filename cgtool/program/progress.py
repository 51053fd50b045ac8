"""How far objects have come that cannot be restored: iterators, generators and files."""

from __future__ import annotations

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
from cgtool.program.objects import kind_of

_CACHE: Any = type(functools.lru_cache(id))


Copies = dict[int, tuple[Any, Any]]
"""Iterators and their copies, by the identity of the iterator."""


def progress(value: Any) -> object | None:
    """A value that differs once the object has gone on; None if that does not show, or can be
    restored."""
    if isinstance(value, SUSPENDED):
        frame = suspended_frame(value)
        return "ended" if frame is None else frame.f_lasti
    if isinstance(value, itertools.cycle):
        made = copy_of(value)
        return None if made is None else id(next(made, None))
    if isinstance(value, queue.SimpleQueue):
        return value.qsize()
    if type(value) is _CACHE:
        return tuple(value.cache_info())
    module = type(value).__module__
    if module == "_io" and not isinstance(value, io.StringIO | io.BytesIO):
        with suppress(OSError, ValueError):
            return int(value.tell())
        return None
    if is_iterator(value):
        with warnings.catch_warnings(), suppress(TypeError):
            warnings.simplefilter("ignore", DeprecationWarning)
            return _numbers_in(value.__reduce__())
        return None
    return None


def _numbers_in(reduced: Any) -> object:
    """The numbers in what `copy` would make an iterator of again."""
    if type(reduced) is tuple:
        if reduced and reduced[0] is iter and type(reduced[1][0]) is list:
            # How many are left: a copy of an iterator of a dictionary is one of a list.
            return len(reduced[1][0]) - sum(reduced[2:])
        return tuple(map(_numbers_in, reduced))
    if is_iterator(reduced):
        return _numbers_in(reduced.__reduce__())
    return reduced if type(reduced) is int else type(reduced)


def is_iterator(value: Any) -> bool:
    """Whether it is an iterator of Python itself."""
    return isinstance(value, Iterator) and type(value).__module__ in ("builtins", "itertools")


def copy_of(iterator: Any, copies: Copies | None = None) -> Any:
    """A copy that goes on from the same item; None for iterators that have no copy.

    What it iterates over is shared, unless that is such an iterator too. ``copies`` gets those that
    are made: one with two names stays one.
    """
    copies = {} if copies is None else copies
    if id(iterator) not in copies:
        copies[id(iterator)] = iterator, None
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            make, arguments, *state = iterator.__reduce__()
            made = make(*(_with_copies(each, copies) for each in arguments))
            if state:
                made.__setstate__(_with_copies(state[0], copies, is_state=True))
            copies[id(iterator)] = iterator, made
    return copies[id(iterator)][1]


def _with_copies(value: Any, copies: Copies, *, is_state: bool = False) -> Any:
    if type(value) is tuple:
        return tuple(_with_copies(each, copies, is_state=is_state) for each in value)
    if type(value) is list and is_state:  # what `cycle` repeats, which it fills as it goes on
        return [*value]
    if not is_iterator(value):
        return value
    if (made := copy_of(value, copies)) is None:
        raise TypeError("an iterator without a copy")
    return made


def in_words(path: str, value: Any) -> str:
    """The name of such an object, what it is, and its line if it has code."""
    names = (f"{prefix}_code" for prefix in ("gi", "cr", "ag"))
    code = next((getattr(value, name) for name in names if hasattr(value, name)), None)
    name = f"`{path}`, {kind_of(value)}" if path else kind_of(value)
    if code is None:
        return name
    return f"{name} at {Path(code.co_filename).name}:{code.co_firstlineno}"
