"""Every ATen op of a thread, watched on a dispatch key that nothing else uses.

A ``TorchDispatchMode`` changes what it watches: ``torch.compile`` falls back to eager while one is
active, ATen takes other code paths (``isTensorSubclassLike``), and under ``inference_mode`` it sees
composite ops whole. Kernels on an unused autocast key see what plain eager runs: the key lies
above autograd, it is switched on by thread, and autograd's threads inherit it.

An op with a composite kernel is let through, and the ops that it is made of are seen; the ops
inside another op's kernel are not. So the same ops are seen as by a mode, but for
those that plain eager does not run.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch

from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import (
    FUNCTORCH_LEVELS,
    PUSH_SAVED_TENSORS_HOOKS,
    DispatchKey,
    TorchDispatchMode,
    dispatch_library,
    exclude_key,
    has_kernel,
    higher_order_ops,
    include_key,
    key_is_excluded,
    no_dispatch,
    no_torch_function,
    op_names,
    redispatcher,
    saved_factor,
    schema_of,
)

Run = Callable[..., Any]
"""The op itself: ``run(*args, **kwargs)``."""
Observer = Callable[[Any, tuple[Any, ...], dict[str, Any], Run, FrameType | None], Any]
"""``observer(op, args, kwargs, run, caller)`` runs an op and returns its result. ``caller`` is the
Python frame that called the op; None on autograd's own threads."""

_NAME = "AutocastIPU"
_KEY: Any = getattr(DispatchKey, _NAME, None)
_FUNCTORCH: Any = getattr(DispatchKey, "FuncTorchDynamicLayerBackMode", None)
_FUNCTORCH_KEYS = (_FUNCTORCH, getattr(DispatchKey, "FuncTorchDynamicLayerFrontMode", None))
_LET_THROUGH = ("aten::detach", "aten::alias")
"""``nn.Parameter(...)`` makes a subclass of what it detached, and that must have no Python object
yet: the results of ops that are watched have one."""


def run_op(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the op behind a kernel or a mode. A frame of this in a traceback says that the op failed,
    and not what observes it (``cgtool.program.boundary``)."""
    return function(*args, **kwargs)


_NUMBER = (int, float, complex)


class _Kernel:
    """The kernel of one op on the key.

    Kernels of single ops, and not one fallback: where a tensor subclass or a dispatch mode takes
    part, PyTorch looks the Python kernel up by op, and does not find a fallback.
    """

    __slots__ = ("_name", "_numbers", "_op", "_redispatch", "_ways")

    def __init__(self, name: str) -> None:
        self._name = name
        self._op: Any = None

    def _resolve(self) -> None:
        qualified, _, overload = self._name.partition(".")
        namespace, _, name = qualified.partition("::")
        op = getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
        self._redispatch = redispatcher(op)
        self._numbers = tuple(
            position
            for position, argument in enumerate(schema_of(op).arguments)
            if argument.type.kind() == "TensorType"
        )
        self._ways: dict[int, tuple[Any, bool]] = {}
        self._op = op

    def __call__(self, keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if self._op is None:
            self._resolve()
        keys = keyset.raw_repr()
        way = self._ways.get(keys)
        if way is None:
            way = self._ways[keys] = self._way(keyset)
        keyset, let_through = way
        observer = _watched.observer
        if let_through or observer is None:
            return run_op(self._redispatch, (keyset, *self._with_tensors(args)), kwargs)
        exclude_key(_KEY, True)
        try:
            run = functools.partial(self._run, keyset)
            return observer(self._op, args, kwargs, run, _caller())
        finally:
            exclude_key(_KEY, False)

    def _way(self, keyset: Any) -> tuple[Any, bool]:
        """Where a call with these keys goes on, and whether nobody observes it. Looked up by the
        number of the key set: one call into C++ an op instead of four."""
        below = keyset.remove(_KEY)
        composite = _is_composite(self._name, below.highestPriorityTypeId().name)
        return below, composite or below.has(_FUNCTORCH)

    def _run(self, keyset: Any, *args: Any, **kwargs: Any) -> Any:
        return run_op(self._redispatch, (keyset, *self._with_tensors(args)), kwargs)

    def _with_tensors(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments with a tensor where the dispatcher has handed over a number."""
        for position in self._numbers:
            if position < len(args) and isinstance(args[position], _NUMBER):
                tensor = wrapped_number(args[position])
                args = (*args[:position], tensor, *args[position + 1 :])
        return args


KERNEL_CODE = _Kernel.__call__.__code__
"""Of the frame between an op's caller and the observer."""
_RUN_OP_CODE = run_op.__code__


def _caller() -> FrameType | None:
    """The frame that called the op, through the composite ops that it is a part of."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_code is KERNEL_CODE or frame.f_code is _RUN_OP_CODE):
        frame = frame.f_back
    return frame


def _is_composite(name: str, key: str) -> bool:
    """Whether the kernel of an op at a key only calls other ops: autocast, and what the dispatcher
    takes from CompositeImplicitAutograd (OperatorEntry.cpp, computeDispatchTableEntry)."""
    if key.startswith("Autocast"):
        return True
    if not has_kernel(name, "CompositeImplicitAutograd"):
        return False
    backend = key.removeprefix("Autograd")
    backend_keys = (key, backend, "CompositeExplicitAutograd")
    return not any(_has_kernel(name, own) for own in backend_keys)


def _has_kernel(name: str, key: str) -> bool:
    try:
        return has_kernel(name, key)
    except RuntimeError:  # AutogradOther belongs to no single backend
        return False


_ONE = torch.ones((), requires_grad=True, device="cpu")


def wrapped_number(number: complex) -> torch.Tensor:
    """The tensor that the dispatcher makes of a Python number: type promotion treats it as one.

    No function returns such a tensor to Python, but a product keeps its factors.
    """
    # 0.0 and -0.0 are equal, and so are not kept.
    return _kept_number(number) if number else _make_number(number)


def _make_number(number: complex) -> torch.Tensor:
    keys = [key for key in (_KEY, *_FUNCTORCH_KEYS) if not key_is_excluded(key)]
    for key in keys:
        exclude_key(key, True)
    try:
        with (
            torch.inference_mode(False), torch.enable_grad(), no_torch_function(), no_dispatch()
        ):  # fmt: skip
            return saved_factor(torch.mul(_ONE, number))
    finally:
        for key in keys:
            exclude_key(key, False)


_kept_number = functools.lru_cache(maxsize=1024, typed=True)(_make_number)


class _Watched:
    """Who watches: one observer a process, on the threads that have the key switched on."""

    observer: Observer | None = None


_watched = _Watched()
_libraries: dict[str, Any] = {}
_known_ops: set[str] = set()


def _register() -> None:
    """Give every op a kernel on the key; ops that are new since the last time, too."""
    for name in op_names():
        if name in _known_ops:
            continue
        _known_ops.add(name)
        namespace, _, rest = name.partition("::")
        if namespace not in _libraries:
            _libraries[namespace] = dispatch_library("IMPL", namespace, "", __file__, 1)
        library = _libraries[namespace]
        if name in _LET_THROUGH:
            library.impl(rest, _NAME, torch.library.fallthrough_kernel, False)
        else:
            library.impl(rest, _NAME, _Kernel(name), True)
    for op in higher_order_ops.values():
        op.fallthrough(_KEY)


class _Mode(TorchDispatchMode):
    """Takes the place of the key where PyTorch cannot hand an op's arguments to Python."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        observer = _watched.observer
        if observer is None:
            return run_op(func, args, kwargs or {})
        return observer(func, args, kwargs or {}, func, sys._getframe().f_back)


@contextlib.contextmanager
def _mode_instead(level: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
    """Below a level of ``torch.func.grad`` a number is a wrapper without data: reading it fails."""
    if _watched.observer is None or key_is_excluded(_KEY):
        with level(*args, **kwargs) as value:
            yield value
        return
    exclude_key(_KEY, True)
    try:
        with _Mode(), level(*args, **kwargs) as value:
            yield value
    finally:
        exclude_key(_KEY, False)


def _push_saved_tensors_hooks(push: Any, pack: Any, unpack: Any) -> Any:
    """Ops that save a tensor call ``pack`` from within: what it calls are ops of their own."""

    @functools.wraps(pack)
    def observed_pack(tensor: torch.Tensor) -> Any:
        if _watched.observer is None or not key_is_excluded(_KEY):
            return pack(tensor)
        exclude_key(_KEY, False)
        try:
            return pack(tensor)
        finally:
            exclude_key(_KEY, True)

    return push(observed_pack, unpack)


@contextlib.contextmanager
def watch(observer: Observer) -> Iterator[None]:
    """``observer`` runs every op of this thread, and of autograd's threads for it.

    One observer at a time: RuntimeError for a second one.
    """
    if _watched.observer is not None:
        raise RuntimeError("ops are watched already")
    _register()
    with Patches() as patches:
        for point in FUNCTORCH_LEVELS:
            patches.wrap(*point, _mode_instead)
        patches.wrap(*PUSH_SAVED_TENSORS_HOOKS, _push_saved_tensors_hooks)
        _watched.observer = observer
        exclude_key(_KEY, False)
        include_key(_KEY, True)
        try:
            yield
        finally:
            include_key(_KEY, False)
            exclude_key(_KEY, True)
            _watched.observer = None


def is_watching() -> bool:
    """Whether an observer is in place."""
    return _watched.observer is not None


@functools.cache
def is_supported() -> bool:
    """Whether this PyTorch can be watched so: tried on a few ops, once a process."""
    if is_watching():
        return True
    names: list[str] = []

    def observe(op: Any, args: Any, kwargs: Any, run: Run, _caller: Any) -> Any:
        names.append(str(schema_of(op).name))
        return run(*args, **kwargs)

    # On the CPU whatever the default device is: a stream may be capturing.
    half = torch.ones((), dtype=torch.float16, device="cpu")
    weight = torch.ones(1, 1, requires_grad=True, device="cpu")
    try:
        with watch(observe), no_torch_function(), torch.enable_grad():
            scaled = half * 2.5
            torch.nn.Parameter(torch.nn.functional.linear(weight, weight).detach())
    except Exception:  # whatever goes wrong in a PyTorch of the future, the mode works
        return False
    return scaled.dtype == half.dtype and names[0] == "aten::mul" and "aten::mm" in names
