"""The calls in which a capture runs its ops: of which code, on which objects, with which sizes.

The calls of a thread are looked at at its first ops and then, the longer the capture, the more
rarely: a call around more than half of the ops is on the stack at one of those that are looked at,
wherever it begins.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from _thread import get_ident
from collections.abc import Callable, Iterable, Iterator, Sequence
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, NamedTuple

import torch

from cgtool.model.ledger import ArgumentSize
from cgtool.model.schema import MAX_INT
from cgtool.observe.frames import (
    callers,
    frames_of_other_threads,
    is_internal,
    locals_of,
    package_part,
)
from cgtool.torch_compat.private import no_torch_function
from cgtool.torch_compat.weak import Weak

_EACH = 16
"""All of the first ops are looked at, so that arguments are what they were at the call."""
_DEEPEST = 8
"""Calls that are looked at, from the capture inwards."""
_MOST = 16
"""Arguments of a call, and items of one of them, whose sizes are noted."""
_NEVER = sys.maxsize

_FUNCTIONS = FunctionType, MethodType

Sizes = tuple[ArgumentSize, ...]
"""Of the tensors that a call gets; if it gets none, of its integers."""


class Objects:
    """What a call works on: the ``self`` of a method, modules among its arguments, and what its
    function has from outside. Calls of the same code on other objects are calls of something
    else."""

    __slots__ = ("_references", "ids")

    def __init__(self, objects: Sequence[object]) -> None:
        self.ids = identities(objects)
        self._references: list[Callable[[], object]] = []
        for each in objects:
            with contextlib.suppress(TypeError):  # another object may get its id
                self._references.append(Weak(each))

    def are(self, ids: tuple[tuple[int, object], ...]) -> bool:
        """Whether they are the objects with these ``identities``."""
        return self.ids == ids and all(reference() is not None for reference in self._references)


def identities(objects: Sequence[object]) -> tuple[tuple[int, object], ...]:
    """Ids, and of modules whether they are in training mode: a graph computes only what its own
    mode does."""
    return tuple((id(each), _is_module(each) and vars(each).get("training")) for each in objects)


class CodeCall(NamedTuple):
    """A call inside a capture."""

    code: CodeType
    name: str
    objects: Objects
    sizes: Sizes | None
    """None if they are not known."""


class _Open:
    """A call that has not returned when it was looked at last, and was not made again since."""

    def __init__(self, frame: FrameType, first: int) -> None:
        self.code = frame.f_code
        self.frame = id(frame)
        """Not the frame itself, which would keep what its function drops."""
        self.first = self.last = first
        self.call: CodeCall | None = None
        """Once it is known: a call that lasts is looked at more than once."""


class CapturedCalls:
    """Looks at the calls of a capture, of the thread that makes this object."""

    def __init__(self, frame: FrameType, follow: Callable[[CodeType, bool], None]) -> None:
        """``frame`` begins the capture. ``follow`` is called with code whose calls are to be passed
        to ``called``, and whether they still are."""
        self._thread = get_ident()
        self._follow = follow
        self._followed: dict[int, CodeType] = {}
        # Those of PyTorch and of cgtool are about to return, and others may get their ids.
        outside = (each for each in callers(frame) if not is_internal(each.f_code))
        self._outside = {id(each): each.f_code for each in outside}
        self._open: list[_Open] = []
        self._around: list[_Open] = []
        """Those that have returned, or may have."""
        self._ops = 0
        _looking[self._thread] = self

    def stop(self) -> None:
        """The capture is over."""
        _looking.pop(self._thread, None)
        for code in self._followed.values():
            self._follow(code, False)
        self._followed.clear()

    def give_up(self) -> None:
        """Nothing is known of the calls."""
        self.stop()
        self._open.clear()
        self._around.clear()

    def called(self, code: CodeType, frame: FrameType) -> None:
        """Code that is followed is called by this thread: another call of it that was open is over,
        unless it is around this one."""
        for at, each in enumerate(self._open):
            if each.code is code:
                if all(id(outer) != each.frame for outer in callers(frame.f_back)):
                    self._close(at)
                return

    def _close(self, depth: int) -> None:
        self._around += self._open[depth:]
        del self._open[depth:]

    def seen(self) -> tuple[CodeCall, ...]:
        """All calls that were on the stack when it was looked at."""
        calls = (each.call for each in (*self._around, *self._open))
        return tuple(call for call in calls if call is not None)

    def around_most(self) -> tuple[CodeCall, ...]:
        """The calls in which more than half of the ops ran, outermost first."""
        calls = [*self._around, *self._open]
        around = [each for each in calls if 2 * (each.last - each.first + 1) > self._ops]
        around.sort(key=lambda each: each.first)
        return tuple(each.call for each in around if each.call is not None)

    def look(self, number: int, frame: FrameType | None) -> int:
        """An op is called by ``frame``, or by a thread for which that waits. Returns the number of
        the next op that is to be looked at."""
        self._ops = number + 1
        running = [] if frame is None else self._inside(frame)
        depth = 0
        for each, known in zip(running, self._open, strict=False):
            if known.code is not each.f_code or known.frame != id(each):
                break
            known.last = number
            if known.call is None:
                known.call = _call_of(each, with_sizes=False)
            depth += 1
        self._close(depth)
        is_early = number < _EACH
        for each in running[depth:]:
            opened = _Open(each, number)
            if is_early:
                opened.call = _call_of(each, with_sizes=True)
            self._open.append(opened)
            code = each.f_code
            if id(code) not in self._followed:
                self._followed[id(code)] = code
                self._follow(code, True)
        return number + 1 if is_early else number + 1 + number // 4

    def _inside(self, frame: FrameType) -> list[FrameType]:
        """The calls inside the capture, outermost first."""
        frames = [
            each
            for each in itertools.takewhile(self._is_inside, callers(frame))
            if _signature(each.f_code).may_be_step
        ]
        return frames[: -_DEEPEST - 1 : -1]

    def _is_inside(self, frame: FrameType) -> bool:
        return self._outside.get(id(frame)) is not frame.f_code


_looking: dict[int, CapturedCalls] = {}
"""By thread."""


def of_thread(thread: int) -> CapturedCalls | None:
    """The calls of the capture of a thread that are looked at."""
    return _looking.get(thread)


def look(thread: int, number: int, caller: FrameType | None = None) -> int:
    """The op with this number, of those that are recorded for a thread, is about to run. Returns
    the number of the next one for which this is to be called."""
    calls = _looking.get(thread)
    if calls is None:
        return _NEVER
    try:
        frame = caller or sys._getframe(1) if get_ident() == thread else None
        if frame is None:  # a thread of autograd's, for which that one waits
            frame = frames_of_other_threads().get(thread)
        return calls.look(number, frame)
    except Exception:  # of methods of the program's objects: its capture must go on
        calls.give_up()
        return _NEVER


def _call_of(frame: FrameType, *, with_sizes: bool) -> CodeCall:
    code, local = frame.f_code, locals_of(frame)
    objects = objects_of(code, local)
    sizes = sizes_of(code, local, objects) if with_sizes else None
    return CodeCall(code, name_of(code, objects), Objects(objects), sizes)


def _may_be_step(code: CodeType) -> bool:
    """Whether it is the program's code, a module of PyTorch's, or what calls compiled code."""
    if not is_internal(code):
        return True
    part = package_part(code.co_filename)
    if part == "/torch/_dynamo/eval_frame.py":
        return code.co_name == "compile_wrapper"
    is_forward = code.co_name == "forward" and code.co_varnames[:1] == ("self",)
    return is_forward and part.startswith("/torch/nn/")


class _Signature(NamedTuple):
    """What code says of its calls, looked up once."""

    code: CodeType
    arguments: tuple[str, ...]
    is_method: bool
    args: str | None
    """The names of ``*args`` and ``**kwargs``."""
    kwargs: str | None
    may_be_step: bool


_signatures: dict[int, _Signature] = {}
"""By id of the code, which is kept."""


def _signature(code: CodeType) -> _Signature:
    known = _signatures.get(id(code))
    if known is None:
        names, count = code.co_varnames, code.co_argcount + code.co_kwonlyargcount
        has_args = bool(code.co_flags & CO_VARARGS)
        known = _signatures[id(code)] = _Signature(
            code,
            names[:count],
            names[:1] == ("self",),
            names[count] if has_args else None,
            names[count + has_args] if code.co_flags & CO_VARKEYWORDS else None,
            _may_be_step(code),
        )
    return known


def _starred(
    signature: _Signature, local: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """``*args`` and ``**kwargs``."""
    args = () if signature.args is None else local.get(signature.args)
    kwargs = {} if signature.kwargs is None else local.get(signature.kwargs)
    # The function may have given these names to something else.
    return args if type(args) is tuple else (), kwargs if type(kwargs) is dict else {}


def objects_of(code: CodeType, local: dict[str, Any]) -> list[Any]:
    """What a call works on: see ``Objects``. ``local``: its local names."""
    signature = _signature(code)
    args, kwargs = _starred(signature, local)
    objects: list[Any] = [local.get("self")] if signature.is_method else []
    if code.co_freevars:
        free = [local.get(name) for name in code.co_freevars]
        functions: list[Any] = [
            getattr(each, "__func__", each) for each in free if type(each) in _FUNCTIONS
        ]
        if args and any(_is_method_of(args[0], each) for each in functions):
            objects.append(args[0])
        objects += (each.__self__ for each in free if type(each) is MethodType)
        objects += functions
        objects += (each for each in free if _is_module(each))
    for name in signature.arguments:
        value = local.get(name)
        if _is_module(value):
            objects.append(value)
    if args or kwargs:
        starred = (*args, *kwargs.values())
        objects += (each for each in starred if _is_module(each))
    return objects


def _is_module(value: object) -> bool:
    return issubclass(type(value), torch.nn.Module)  # `isinstance` may run the program's code


def _is_method_of(owner: object, function: FunctionType) -> bool:
    """Whether a wrapper of ``function`` was called as a method of ``owner``."""
    return hasattr(type(owner), getattr(function, "__name__", ""))


def _names_of_args(code: CodeType, objects: Sequence[Any], args: Sequence[Any]) -> tuple[str, ...]:
    """What calls compiled code passes ``*args`` on to a function, or to the forward of a module."""
    first: Any = objects[0] if objects and is_internal(code) else None
    if args and args[0] is first:  # a method that was compiled in its class
        return ()
    called = type(first).forward if _is_module(first) else first
    inner = getattr(called, "__code__", None)
    return () if inner is None else _signature(inner).arguments[_is_module(first) :]


def sizes_of(code: CodeType, local: dict[str, Any], objects: Sequence[Any]) -> Sizes | None:
    """The sizes that a call gets; None if it is only traced, with tensors that have no memory.
    ``local``: its local names; ``objects``: as ``objects_of``."""
    signature = _signature(code)
    args, kwargs = _starred(signature, local)
    named: list[tuple[str, Any]] = [(name, local.get(name)) for name in signature.arguments]
    if args or kwargs:
        names = _names_of_args(code, objects, args)
        rest = [f"args[{at}]" for at in range(len(names), len(args))]
        named += zip((*names, *rest), args, strict=False)
        named += kwargs.items()
    sizes: list[ArgumentSize] = []
    with no_torch_function():
        for name, value in named:
            kind = type(value)
            if kind in _PLAIN:
                sizes.append(ArgumentSize(name, tuple(value.shape)))
            elif kind not in _WITHOUT_SIZE:
                for item, tensor in _items(name, value):
                    if type(tensor) not in _PLAIN and hasattr(tensor, "fake_mode"):
                        return None
                    sizes.append(ArgumentSize(item, tuple(tensor.shape)))
    if not sizes:
        sizes += (ArgumentSize(name, (), value) for name, value in named if _is_size(value))
    return tuple(sizes[:_MOST])


def _items(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in an argument: itself, or those in a list or a dict."""
    items: Iterable[tuple[str, Any]] = ((name, value),)
    if type(value) is tuple or type(value) is list:
        items = ((f"{name}[{at}]", each) for at, each in enumerate(value[:_MOST]))
    elif type(value) is dict:
        items = ((key, each) for key, each in value.items() if type(key) is str)
    return (each for each in items if issubclass(type(each[1]), torch.Tensor))


_WITHOUT_SIZE = type(None), bool, int, float, str
_PLAIN = torch.Tensor, torch.nn.Parameter


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_INT


def name_of(code: CodeType, objects: Sequence[Any]) -> str:
    """``Decoder.forward``: what a reader calls it."""
    first = objects[0] if objects else None
    wrapped = next((each for each in objects if type(each) is FunctionType), None)
    if wrapped is not None and _is_method_of(first, wrapped) and not is_internal(code):
        return f"{type(first).__name__}.{wrapped.__name__}"
    if code.co_varnames[:1] == ("self",):
        return f"{type(first).__name__}.{code.co_name}"
    if is_internal(code) and first is not None:
        # What calls compiled code: its module, or its function.
        is_function = type(first) is FunctionType
        return first.__qualname__ if is_function else f"{type(first).__name__}.forward"
    return code.co_qualname
