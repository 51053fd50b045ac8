"""Every ATen op of a thread, watched on a dispatch key that nothing else uses.

A ``TorchDispatchMode`` changes what it watches: ``torch.compile`` falls back to eager while one is
active, ATen takes other code paths (``isTensorSubclassLike``), and under ``inference_mode`` it sees
composite ops whole. Kernels on an unused key see what plain eager runs. The key lies below all
that changes or replaces ops: autocast, autograd, functorch, modes and tensor subclasses. So a
result is complete before autograd's hooks run (checkpointing stops its recomputation by raising in
one), and for a tensor subclass the ops on its inner tensors are seen. The key lies above
BackendSelect, so a factory has no backend yet. It is switched on per thread: autograd's threads
inherit it, other new ones are patched.

Composite ops are not reported; the ops that they call are. The ops inside another op's kernel are
not seen. So this sees what a mode sees, except ops that plain eager never runs. If PyTorch has no
such key, a mode takes its place.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeVar

import torch

from cgtool.torch_compat.dispatch_keys import (
    NUMBERS,
    OP_KERNEL_CODE,
    RUN_CODE,
    Dispatch,
    Kernels,
    is_unconvertible,
    unused_key,
)
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import (
    ENTER_FAKE_MODE,
    ExcludedKeys,
    MissingPrivateName,
    TorchDispatchMode,
    all_keys,
    dispatches_to_python,
    exclude_key,
    has_kernel,
    higher_order_ops,
    include_key,
    included_keys,
    innermost_mode,
    key_is_excluded,
    keys_after,
    mode_count,
    no_dispatch,
    no_torch_function,
    op_names,
    parse_key,
    pytree,
    runs_meta_kernels,
    schema_of,
)
from cgtool.torch_compat.shared_kernels import shares_kernel

Result = TypeVar("Result")
Run = Callable[..., Any]
"""The op itself: ``run(*args, **kwargs)``."""
Observer = Callable[[Any, tuple[Any, ...], dict[str, Any], Run, FrameType | None], Any]
"""``observer(op, args, kwargs, run, caller)`` runs an op, by ``call_op(run, args, kwargs)``, and
returns its result. ``caller`` is the Python frame that called the op; None on autograd's own
threads."""

_NAME = "Fake"
"""PyTorch keeps this key for a FakeTensor mode in C++, and has no kernel on it yet."""
_, _KEY = unused_key(_NAME)
try:
    _PYTHON: Any = parse_key("Python")
    _BACKEND_SELECT = parse_key("BackendSelect")
    _META = parse_key("Meta")
    _IS_ABOVE_PYTHON = _KEY is not None and int(_KEY) > int(_PYTHON)
    """Modes and tensor subclasses come after the key: in PyTorch 2.11, not in 2.13."""
except (MissingPrivateName, RuntimeError):
    _KEY, _IS_ABOVE_PYTHON = None, False


class _Route(NamedTuple):
    """How an op goes on from the key with one key set. Kept, because each question to a key set is
    a call into C++."""

    is_composite: bool
    """Whether the op only calls other ops."""
    may_be_fake: bool
    """Whether it computes nothing but shapes."""
    in_python: bool
    """Whether a mode or a tensor subclass runs it."""
    redispatch: Run
    run: Run
    """Accepts numbers instead of tensors."""
    tensors: tuple[int, ...]
    """Positions of arguments that may be numbers instead of tensors."""
    is_collective: bool


_routes: defaultdict[int, dict[int, _Route]] = defaultdict(dict)
"""By id of the op, which its routes keep alive (the hash of an op is computed in Python), and by
number of the key set."""


def _route(op: Any, keyset: Any) -> _Route:
    """Look for the way of an op, for the first time."""
    below = keyset.remove(_KEY)
    key = below.highestPriorityTypeId().name
    following = below.remove(_BACKEND_SELECT).highestPriorityTypeId().name
    if following in ("CPU", "CUDA"):
        # BackendSelect only looks for the device of an op.
        key = following
    dispatch = Dispatch(op)
    route = _routes[id(op)][keyset.raw_repr()] = _Route(
        _is_composite(op.name(), key),
        below.has(_META),
        _IS_ABOVE_PYTHON and below.has(_PYTHON),
        functools.partial(dispatch.redispatch, below),
        functools.partial(dispatch.run, below),
        dispatch.tensors,
        op.name().startswith("c10d::"),
    )
    return route


def _kernel(keyset: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    """The kernel of every op on the key."""
    try:
        route = _routes[id(op)][keyset.raw_repr()]
    except KeyError:
        route = _route(op, keyset)
    is_composite, may_be_fake, in_python, redispatch, run, tensors, is_collective = route
    if may_be_fake and runs_meta_kernels():
        with unintercepted():
            return run(*args, **kwargs)
    if in_python:
        return _dispatch_to_python(op, args, kwargs)
    if _observer is None and _placer is None:
        if _watched.here and not _new_threads.watched:
            # The watch has ended on another thread, which could not switch off the key of this one.
            _watched.here = False
            include_key(_KEY, False)
        return run(*args, **kwargs)
    if is_composite:
        return run(*args, **kwargs)
    if _inside.inspector is not None:
        return _run_inside(op, run, args, kwargs)
    if is_collective and _on_collective is not None:
        _on_collective(op, args, kwargs)
    exclude_key(_KEY, True)
    for key in _kept_off:
        exclude_key(key, True)
    try:
        if _placer is not None:
            return _placer(op, args, kwargs, run)
        for position in tensors:
            if position < len(args) and type(args[position]) in NUMBERS:
                break
        else:
            run = redispatch
        return _observer(op, args, kwargs, run, _caller())  # type: ignore[misc]
    finally:
        exclude_key(_KEY, False)
        for key in _kept_off:
            exclude_key(key, False)


def run_observed(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Run) -> Any:
    """Run an op by the observer, if this thread has one."""
    if _observer is None or _inside.inspector is not None or not _watched.here:
        return run(*args, **kwargs)
    return _observer(op, args, kwargs, run, _caller())


def is_watched() -> bool:
    """Whether there is an observer."""
    return _observer is not None


_on_collective: Callable[[Any, tuple[Any, ...], dict[str, Any]], object] | None = None


def note_collectives(
    note: Callable[[Any, tuple[Any, ...], dict[str, Any]], object] | None,
) -> None:
    """From now on, while ops are watched, ``note(op, args, kwargs)`` is called before each op that
    hands tensors to a process group. None: no longer."""
    global _on_collective
    _on_collective = note


_kept_off: list[Any] = []
"""Other keys that are off inside an op."""


@contextlib.contextmanager
def kept_off_inside(key: Any) -> Iterator[None]:
    """While entered, ops that an observed op calls in C++ skip this key, too."""
    _kept_off.append(key)
    try:
        yield
    finally:
        _kept_off.remove(key)


def is_inside() -> bool:
    """Whether the ops of this thread are those that another one calls in its kernel."""
    return _inside.inspector is not None


def outer_ops() -> tuple[str, ...]:
    """The ops whose kernels this thread is in, outermost first, if they are inspected."""
    return tuple(_inside.callers) if is_inside() else ()


Inspector = Callable[[Any, tuple[Any, ...], dict[str, Any], Sequence[str]], None]
"""``inspector(op, args, kwargs, callers)`` is called before an op that other ops call:
``aten::index_fill.int_Tensor`` and ``aten::index_fill_.int_Tensor``."""


class _Inside(threading.local):
    """The op whose kernel is inspected on this thread."""

    inspector: Inspector | None = None

    def __init__(self) -> None:
        self.callers: list[str] = []


_inside = _Inside()
_unseen: set[str] = set()
"""Ops whose kernels call others with arguments that PyTorch cannot convert to Python."""


def run_inspected(op_name: str, inspector: Inspector, run: Callable[[], Result]) -> Result:
    """Calls ``run``, which runs an observed op, and returns its result: inspects what its kernel
    calls, down to ops whose kernel is another one on a GPU."""
    if op_name in _unseen:
        return run()
    _inside.inspector = inspector
    _inside.callers = [op_name]
    exclude_key(_KEY, False)
    try:
        return run()
    except RuntimeError as error:
        if not is_unconvertible(error):
            raise
    finally:
        exclude_key(_KEY, True)
        _inside.inspector = None
    _unseen.add(op_name)
    return run()


def run_python_kernel(op_name: str, run: Callable[[], Result]) -> Result:
    """Calls ``run``, which runs an op in a placer, and returns its result: the placer stands before
    what a custom op's Python code calls, too."""
    if _inside.inspector is not None or not may_have_python_kernel(op_name):
        return run()
    return run_inspected(op_name, lambda *_: None, run)


def may_have_python_kernel(op_name: str) -> bool:
    """Whether the kernel of an op may be in Python: only those of PyTorch's own ops are not."""
    return not op_name.startswith(("aten::", "prims::", "quantized::"))


def _run_inside(op: Any, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    assert _inside.inspector is not None
    callers = _inside.callers
    _inside.inspector(op, args, kwargs, callers)
    name: str = op.name()
    callers.append(name)
    try:
        if shares_kernel(name) and name not in _unseen:
            try:
                return _run_placed(op, run, args, kwargs)
            except RuntimeError as error:
                if not is_unconvertible(error):
                    raise
            _unseen.add(name)
        exclude_key(_KEY, True)
        try:
            return _run_placed(op, run, args, kwargs)
        finally:
            exclude_key(_KEY, False)
    finally:
        callers.pop()


def _run_placed(op: Any, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return run(*args, **kwargs) if _placer is None else _placer(op, args, kwargs, run)


def _higher_order_kernel(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The kernel of ``torch.cond`` and its like, which PyTorch dispatches in Python."""
    dense = op.py_kernels.get(parse_key("CompositeExplicitAutograd"))
    if _inside.inspector is not None and dense is not None and not mode_count():
        return dense(*args, **kwargs)
    exclude_key(_KEY, True)
    try:
        if _observer is None:
            return op(*args, **kwargs)
        return _observer(op, args, kwargs, op, _caller())
    finally:
        exclude_key(_KEY, False)


def _dispatch_to_python(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Have a mode or a tensor subclass run an op, as PyTorch's own kernel on the Python key does.
    That one turns off all keys above Python, and with them this key, where it is above."""
    leaves = pytree.tree_leaves((args, kwargs))
    types = tuple(dict.fromkeys(type(leaf) for leaf in leaves if _is_subclass(leaf)))
    with ExcludedKeys((all_keys() - keys_after(_PYTHON)).remove(_PYTHON).remove(_KEY)):
        if mode_count():
            with innermost_mode() as mode:
                result = mode.__torch_dispatch__(op, types, args, kwargs)
            if result is not NotImplemented:
                return result
        for kind in sorted(types, key=lambda kind: -len(kind.__mro__)):
            result = kind.__torch_dispatch__(op, types, args, kwargs)
            if result is not NotImplemented:
                return result
    raise TypeError(f"no __torch_dispatch__ of {[kind.__name__ for kind in types]} runs {op}")


def _is_subclass(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and dispatches_to_python(leaf)


KERNEL_CODES = (_kernel.__code__, OP_KERNEL_CODE, _higher_order_kernel.__code__)
"""Code of the frames between an op's caller and the observer."""
_passed_over = {id(code): code for code in (*KERNEL_CODES, RUN_CODE, run_observed.__code__)}
"""By id, because comparing code objects takes longer than everything else that is done for a
frame."""


def pass_over(*codes: CodeType) -> None:
    """Frames of these codes stand between an op and its caller."""
    _passed_over.update((id(code), code) for code in codes)


def _caller() -> FrameType | None:
    """The frame that called the op, through the composite ops that it is a part of."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and id(frame.f_code) in _passed_over:
        frame = frame.f_back
    return frame


_FUNCTIONAL = "_c10d_functional::"
_DISTRIBUTED = "c10d::", _FUNCTIONAL


def _is_composite(name: str, key: str) -> bool:
    """Whether the kernel of an op at a key only calls other ops: what the dispatcher takes from
    CompositeImplicitAutograd (OperatorEntry.cpp, computeDispatchTableEntry), and the collectives
    that return tensors: they call those of ``c10d`` (Functional.cpp)."""
    return name.startswith(_FUNCTIONAL) or (
        has_kernel(name, "CompositeImplicitAutograd")
        and not (has_kernel(name, key) or has_kernel(name, "CompositeExplicitAutograd"))
    )


_observer: Observer | None = None
"""Who watches, on the threads that have the key switched on or the mode entered."""
Placer = Callable[[Any, tuple[Any, ...], dict[str, Any], Run], Any]
"""``placer(op, args, kwargs, run)`` has an op run by ``run_observed``, and returns its result."""
_placer: Placer | None = None


class _NewThreads:
    watched = 0
    """How many have entered ``watch_new_threads``."""


_new_threads = _NewThreads()


class _Watched(threading.local):
    """Whether the observer runs the ops of this thread."""

    here = False


_watched = _Watched()


_kernels = Kernels(_NAME, _KEY, _kernel)


class _Mode(TorchDispatchMode):
    """Takes the place of the key where a PyTorch has none."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # PyTorch would wrap __torch_dispatch__ in a guard against torch.compile whose first call
        # imports torch._dynamo: more than a second, and a frame between the op and its caller.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _observer is None:
            return func(*args, **(kwargs or {}))
        # Not _getframe(1): on autograd's threads there is no frame above, which would raise.
        return _observer(func, args, kwargs or {}, func, sys._getframe().f_back)


@contextlib.contextmanager
def watch(observer: Observer) -> Iterator[None]:
    """While entered, ``observer`` runs every op of this thread, of autograd's threads for it, and
    of the threads that start meanwhile.

    Of two observers the inner one runs an op by the outer one, which runs the op itself.
    """
    global _observer
    outer = _observer

    def chained(op: Any, args: Any, kwargs: Any, run: Run, caller: FrameType | None) -> Any:
        def run_outer(*args: Any, **kwargs: Any) -> Any:
            return outer(op, args, kwargs, run, caller) if outer else run(*args, **kwargs)

        return observer(op, args, kwargs, run_outer, caller)

    _observer = observer if outer is None else chained
    try:
        with contextlib.ExitStack() as entered:
            if outer is None:
                _kernels.replace(None)
                entered.enter_context(watch_thread())
                entered.enter_context(watch_new_threads())
                entered.enter_context(_kernels_for_fake_tensors())
            yield
    finally:
        _observer = outer


def can_watch_natively() -> bool:
    """Whether ``watch_natively`` can be entered: nothing in Python stands between an op and its
    kernel."""
    return is_supported() and _observer is None and _placer is None


class watch_natively:  # noqa: N801
    """While entered, ``log`` notes the ops that an observer of ``watch`` would run.
    ``native``: the module of ``torch_compat.op_watch``. No ``watch`` may be entered meanwhile.

    Where modes and tensor subclasses come after the key, it notes the op that one of them runs, and
    not the ops that this one calls. A capture waits for this: a generator would take several times
    as long. It may be left on another thread.
    """

    def __init__(self, native: Any, log: Any) -> None:
        self._native = native
        self._log = log
        self._threads: watch_new_threads | None = None

    def __enter__(self) -> None:
        global _observer
        if not can_watch_natively():
            raise RuntimeError("this thread's ops cannot be watched natively")
        _install(self._native)
        _put_kernels()
        self._was_here, self._had_key = _watched.here, included_keys().has(_KEY)
        try:
            # For the ops that PyTorch dispatches in Python; all others reach the kernel.
            _observer = self._observe
            _watched.here = True
            if not self._had_key:
                include_key(_KEY, True)
            threads = watch_new_threads()
            threads.__enter__()
            self._threads = threads
            self._native.watch(self._log)
        except BaseException:  # Ctrl-C, or what a signal handler of the program raises
            self.__exit__()
            raise

    def __exit__(self, *_raised: object) -> None:
        global _observer
        self._native.watch(None)
        self._log.close()
        if self._threads is not None:
            self._threads.__exit__()
        if not self._had_key:
            include_key(_KEY, False)
        _watched.here = self._was_here
        _observer = None

    def _observe(self, op: Any, args: Any, kwargs: Any, run: Run, _caller: FrameType | None) -> Any:
        schema = schema_of(op)
        name = str(getattr(op, "__name__", op)) if schema is None else op.name()
        return self._native.watch_call(name, lambda: run(*args, **kwargs))


@contextlib.contextmanager
def watch_thread() -> Iterator[None]:
    """The observer of ``watch`` runs the ops of this thread too: a new thread starts without it."""
    before, _watched.here = _watched.here, True
    try:
        with _key_on() if is_supported() else _Mode():
            yield
    finally:
        _watched.here = before


class watch_new_threads:  # noqa: N801
    """``watch_thread`` for every thread that starts while entered, also in a later ``watch``, and
    whatever it runs between two."""

    # Around `run`, the traceback of a thread would begin here.
    _NAME = "_bootstrap_inner"

    def __enter__(self) -> None:
        self._before = getattr(threading.Thread, self._NAME)
        setattr(threading.Thread, self._NAME, _watching(self._before))
        _new_threads.watched += 1

    def __exit__(self, *_raised: object) -> None:
        _new_threads.watched -= 1
        setattr(threading.Thread, self._NAME, self._before)


@functools.cache
def _watching(run_thread: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    @functools.wraps(run_thread)
    def run(thread: threading.Thread) -> None:
        with watch_thread():
            run_thread(thread)

    return run


@contextlib.contextmanager
def _kernels_for_fake_tensors() -> Iterator[None]:
    """While entered, each op has its own kernel as soon as a FakeTensorMode begins. Where a mode or
    a tensor subclass is there but turned off, as in the kernels of fake tensors, PyTorch looks for
    one, and fails if there is only one for all ops (PythonKernelHolder, python_dispatch.cpp)."""

    def enter(original: Any, mode: Any) -> Any:
        if included_keys().has(_KEY):
            _kernels.register_all(True)
        return original(mode)

    with Patches() as patches:
        if is_supported():
            patches.wrap_later(*ENTER_FAKE_MODE, enter)
        yield


@contextlib.contextmanager
def place(placer: Placer) -> Iterator[None]:
    """While entered, ``placer`` stands between every op of this thread and its observer.

    Raises MissingPrivateName if this PyTorch has no such key.
    """
    global _placer
    if not is_supported():
        raise MissingPrivateName(f"PyTorch {torch.__version__} uses the dispatch key {_NAME}")
    if _observer is None and not included_keys().has(_KEY):
        _kernels.replace(None)
    before, _placer = _placer, placer
    try:
        with _key_on(), _kernels_for_fake_tensors():
            yield
    finally:
        _placer = before


def prepare(let_through: Iterable[str] = (), native: Any = None) -> None:
    """Put the kernels on the key ahead of the first watch: those for ``watch``, which takes 50 ms
    in PyTorch 2.11, or with ``native`` that for ``watch_natively``. In this process no watch will
    see the ops of ``let_through``, unless there was one before."""
    if _KEY is not None:
        _kernels.let_through(let_through)
    if not is_supported():
        return
    if native is not None and can_watch_natively():
        _install(native)
    else:
        _kernels.register_all(_IS_ABOVE_PYTHON)


def _install(native: Any) -> None:
    """Put the kernel in C++ on the key, and those in Python for collectives, which are few and
    whose arguments C++ does not read."""
    _kernels.replace(native.Kernel)
    if _on_collective is not None:
        _kernels.implement(_collectives())


@functools.cache
def _collectives() -> tuple[str, ...]:
    """Those of PyTorch itself: to list all ops takes 3 ms."""
    return tuple(each for each in op_names() if each.startswith(_DISTRIBUTED))


_with_kernel: set[str] = set()
"""The names of ops of ``higher_order_ops`` that have a kernel on the key."""


@contextlib.contextmanager
def _key_on(needed: Iterable[str] | None = None) -> Iterator[None]:
    """``needed``: as of ``Kernels.register_all``."""
    if included_keys().has(_KEY):
        yield
        return
    _put_kernels(needed)
    include_key(_KEY, True)
    try:
        yield
    finally:
        include_key(_KEY, False)


def _put_kernels(needed: Iterable[str] | None = None) -> None:
    _kernels.register_all(_IS_ABOVE_PYTHON, needed)
    if len(_with_kernel) < len(higher_order_ops):
        for name in higher_order_ops.keys() - _with_kernel:
            higher_order_op = higher_order_ops[name]
            kernel = functools.partial(_higher_order_kernel, higher_order_op)
            higher_order_op.py_impl(_KEY)(kernel)
            _with_kernel.add(name)


@contextlib.contextmanager
def unobserved() -> Iterator[None]:
    """Ops of this thread are not observed, neither here nor by a mode of the user's. A placer still
    stands before them."""
    if _placer is None:
        with unintercepted():
            yield
        return
    before, _watched.here = _watched.here, False
    inspector, _inside.inspector = _inside.inspector, None
    # An observer is called inside an op, where the keys are off.
    keys = [_KEY, *_kept_off] if included_keys().has(_KEY) else []
    excluded = [key for key in keys if key_is_excluded(key)]
    for key in excluded:
        exclude_key(key, False)
    try:
        with no_dispatch():
            yield
    finally:
        for key in excluded:
            exclude_key(key, True)
        _watched.here, _inside.inspector = before, inspector


@contextlib.contextmanager
def unintercepted() -> Iterator[None]:
    """Ops of this thread go straight to PyTorch's kernels."""
    keys = [] if _KEY is None else [_KEY, *_kept_off]
    watched = [key for key in keys if not key_is_excluded(key)]
    with no_dispatch():
        for key in watched:
            exclude_key(key, True)
        try:
            yield
        finally:
            for key in watched:
                exclude_key(key, False)


@contextlib.contextmanager
def with_autograd() -> Iterator[None]:
    """In a kernel below autograd: ops of this thread go straight to PyTorch's kernels, those of
    autograd first."""
    keys = map(parse_key, ("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor"))
    excluded = [key for key in keys if key_is_excluded(key)]
    for key in excluded:
        exclude_key(key, False)
    try:
        with unintercepted():
            yield
    finally:
        for key in excluded:
            exclude_key(key, True)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Ops of this thread are not observed, and its keys are those of a plain run: Dynamo's guards
    see them, and its fake tensors fail under the key."""
    if _KEY is None or not included_keys().has(_KEY):
        yield
        return
    include_key(_KEY, False)
    try:
        yield
    finally:
        include_key(_KEY, True)


@functools.cache
def is_supported() -> bool:
    """Whether this PyTorch has the key: tried on a few ops, once per process."""
    with _trying:
        return _try_key()


_TRIED = ("aten::mul.Tensor", "aten::t", "aten::mm")
"""Kernels for all ops take 50 ms in PyTorch 2.11."""
_trying = threading.Lock()
"""Held while the key is tried: the observer is that of all threads."""


def _try_key() -> bool:
    global _observer
    names: list[str] = []

    def observe(op: Any, args: Any, kwargs: Any, run: Run, _caller: Any) -> Any:
        names.append(str(schema_of(op).name))
        return run(*args, **kwargs)

    # On the CPU whatever the default device is: a stream may be capturing.
    half = torch.ones((), dtype=torch.float16, device="cpu")
    weight = torch.ones(1, 1, requires_grad=True, device="cpu")
    before, _observer = _observer, observe
    try:
        with _key_on(_TRIED), no_torch_function(), torch.enable_grad():
            scaled = half * 2.5
            torch.nn.Parameter(torch.nn.functional.linear(weight, weight).detach())
    except Exception:  # whatever goes wrong in a PyTorch of the future, the mode works
        return False
    finally:
        _observer = before
    return scaled.dtype == half.dtype and names[:1] == ["aten::mul"] and "aten::mm" in names
