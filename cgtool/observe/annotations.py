"""Ranges open around an op: ``record_function``, NVTX, PyTorch's ``mark_kernels``.

They are observed where Python enters them, so they work on every driver, without a profiler, and
with a PyTorch that was built without NVTX. Ranges of the user and ranges that PyTorch opens itself
(``Optimizer.step#AdamW.step``) are treated alike. Costs a Python call when a range opens
and closes, and does not disturb the program.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from importlib import metadata
from types import ModuleType
from typing import Any

import torch

from cgtool.observe.frames import call_user
from cgtool.torch_compat.private import MARK_KERNELS_MODULES, NVTX


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


_watching: Annotations | None = None
"""Where open ranges are recorded; None while nobody watches."""


def _opened(name: Any) -> None:
    if _watching is not None:
        _watching.push(str(name))


def _closed() -> None:
    if _watching is not None:
        _watching.pop()


@contextlib.contextmanager
def _range(name: Any) -> Iterator[None]:
    _opened(name)
    try:
        yield
    finally:
        _closed()


@contextlib.contextmanager
def watch(enabled: bool = True) -> Iterator[Annotations]:
    """Record the ranges that open while this is entered; none when not ``enabled``."""
    global _watching
    install()
    annotations = Annotations()
    before = _watching
    _watching = annotations if enabled else None
    try:
        yield annotations
    finally:
        _watching = before


@functools.cache
def install() -> None:
    """Install the wrappers for the life of the process; they do nothing while nobody watches.

    Call it before the user's file is imported: ``from torch.cuda.nvtx import range_push`` binds
    the function of that moment.
    """
    record_function = torch.autograd.profiler.record_function
    _wrap(record_function, "__enter__", before=lambda self, *_: _opened(self.name))
    _wrap(record_function, "__exit__", after=_closed)
    # Beneath range_push and range_pop, which torch.compile knows by identity: with another function
    # in their place it would break the graph there, and compile other kernels.
    setattr(*NVTX, _Nvtx(getattr(*NVTX)))
    for name in MARK_KERNELS_MODULES:
        with contextlib.suppress(ImportError):
            _wrap_marks(importlib.import_module(name))
    package = _nvtx_package()
    if package is not None:
        _wrap(package, "push_range", before=_opened_message)
        _wrap(package, "pop_range", after=_closed)
        _wrap_annotate(package.annotate)


class _Nvtx:
    """PyTorch's binding of NVTX, with the calls of ranges watched.

    PyTorch built without NVTX raises RuntimeError; the range is recorded all the same.
    """

    def __init__(self, original: Any) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def rangePushA(self, message: str) -> int:  # noqa: N802 - NVTX's own spelling
        _opened(message)
        with contextlib.suppress(RuntimeError):
            return int(self._original.rangePushA(message))
        return 0

    def rangePop(self) -> int:  # noqa: N802
        _closed()
        with contextlib.suppress(RuntimeError):
            return int(self._original.rangePop())
        return 0

    def markA(self, message: str) -> None:  # noqa: N802
        with contextlib.suppress(RuntimeError):
            self._original.markA(message)


def _opened_message(message: Any = None, *_args: Any, **_kwargs: Any) -> None:
    _opened("" if message is None else message)


def _wrap(
    owner: Any,
    name: str,
    *,
    before: Callable[..., None] | None = None,
    after: Callable[[], None] | None = None,
) -> None:
    """Replace ``owner.name`` by one that calls ``before`` and ``after`` around it."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before(*args, **kwargs)
        try:
            return call_user(original, *args, **kwargs)
        finally:
            if after is not None:
                after()

    setattr(owner, name, wrapper)


def _wrap_marks(module: ModuleType) -> None:
    """``mark_kernels(annotation)`` of torch >= 2.12, wherever the release keeps it."""
    original = getattr(module, "mark_kernels", None)
    if original is None:
        return

    @functools.wraps(original)
    @contextlib.contextmanager
    def mark_kernels(annotation: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        with _range(annotation), original(annotation, *args, **kwargs) as value:
            yield value

    module.mark_kernels = mark_kernels  # type: ignore[attr-defined]


def _nvtx_package() -> ModuleType | None:
    """The ``nvtx`` package, where it is installed and not switched off (NVTX_DISABLE)."""
    try:
        metadata.distribution("nvtx")
        package = importlib.import_module("nvtx")
    except ImportError:
        return None
    own = str(getattr(getattr(package, "annotate", None), "__module__", ""))
    return package if own.startswith("nvtx") and package.enabled() else None


def _wrap_annotate(annotate: Any) -> None:
    """``nvtx.annotate``: a context manager, and a decorator that does not enter it."""
    original_init = annotate.__init__

    @functools.wraps(original_init)
    def init(self: Any, message: Any = None, *args: Any, **kwargs: Any) -> None:
        original_init(self, message, *args, **kwargs)
        self.cgtool_message = message

    annotate.__init__ = init
    _wrap(annotate, "__enter__", before=lambda self: _opened_message(self.cgtool_message))
    _wrap(annotate, "__exit__", after=_closed)
    # Releases whose decorator does enter it inherit __call__ from contextlib.
    original_call = vars(annotate).get("__call__")
    if original_call is None:
        return

    @functools.wraps(original_call)
    def decorate(self: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        inner = original_call(self, function)
        message = self.cgtool_message

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with _range(function.__name__ if message is None else message):
                return call_user(inner, *args, **kwargs)

        return wrapper

    annotate.__call__ = decorate
