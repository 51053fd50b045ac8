"""The user's own ranges: ``record_function``, NVTX, PyTorch's ``mark_kernels``.

They are watched where they are entered from Python, so that they work on every driver, with no
profiler running, and also where PyTorch was built without NVTX.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch


class Annotations(threading.local):
    """``current()`` is the tuple of ranges open on this thread, outermost first."""

    def __init__(self) -> None:
        self.open: tuple[str, ...] = ()

    def current(self) -> tuple[str, ...]:
        return self.open

    def push(self, name: str) -> None:
        self.open = (*self.open, name)

    def pop(self) -> None:
        self.open = self.open[:-1]


def _replace(stack: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    before = getattr(owner, name)
    setattr(owner, name, value)
    stack.callback(setattr, owner, name, before)


def _around(
    before: Callable[..., Any],
    *,
    enter: Callable[..., None] | None = None,
    leave: Callable[[], None] | None = None,
    optional: bool = False,
) -> Callable[..., Any]:
    @functools.wraps(before)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if enter is not None:
            enter(*args, **kwargs)
        try:
            return before(*args, **kwargs)
        except RuntimeError:
            # PyTorch built without NVTX raises here; the range is recorded all the same.
            if not optional:
                raise
            return 0
        finally:
            if leave is not None:
                leave()

    return wrapper


@contextlib.contextmanager
def watch(enabled: bool = True) -> Iterator[Annotations]:
    """Record ranges that open while the context is entered; none when not ``enabled``."""
    seen = Annotations()
    if not enabled:
        yield seen
        return

    def enter_named(self: Any, *_: Any) -> None:
        seen.push(str(self.name))

    def enter_message(msg: Any = None, *_args: Any, **kwargs: Any) -> None:
        seen.push(str(msg if msg is not None else kwargs.get("message", "")))

    with contextlib.ExitStack() as stack:
        record_function = torch.autograd.profiler.record_function
        _replace(
            stack,
            record_function,
            "__enter__",
            _around(record_function.__enter__, enter=enter_named),
        )
        _replace(
            stack, record_function, "__exit__", _around(record_function.__exit__, leave=seen.pop)
        )
        nvtx = torch.cuda.nvtx
        push = _around(nvtx.range_push, enter=enter_message, optional=True)
        pop = _around(nvtx.range_pop, leave=seen.pop, optional=True)
        for name, value in (("range_push", push), ("range_pop", pop)):
            _replace(stack, nvtx, name, value)
        package = sys.modules.get("nvtx")
        if package is not None and hasattr(package, "push_range"):
            _replace(stack, package, "push_range", _around(package.push_range, enter=enter_message))
            _replace(stack, package, "pop_range", _around(package.pop_range, leave=seen.pop))
        for name in ("torch.cuda.graph_annotations", "torch.cuda._graph_annotations"):
            _watch_marks(stack, seen, name)
        yield seen


def _watch_marks(stack: contextlib.ExitStack, seen: Annotations, module_name: str) -> None:
    """``mark_kernels(annotation)`` of torch >= 2.12, wherever the release keeps it."""
    try:
        module = importlib.import_module(module_name)
    except ImportError:
        return
    before = getattr(module, "mark_kernels", None)
    if before is None:
        return

    @contextlib.contextmanager
    def mark_kernels(annotation: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        seen.push(str(annotation))
        try:
            with before(annotation, *args, **kwargs) as value:
                yield value
        finally:
            seen.pop()

    _replace(stack, module, "mark_kernels", mark_kernels)
