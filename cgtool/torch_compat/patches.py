"""Temporary changes to other modules: replaced attributes, and Python's collector switched off."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import sys
import threading
import types
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, SupportsIndex

from cgtool.model.collector import CollectorPaused
from cgtool.torch_compat.imports import after_import
from cgtool.torch_compat.private import script_builtins

_MISSING = object()


class Patches(contextlib.ExitStack):
    """Changes attributes, and restores them in reverse order on exit.

    ::

        with Patches() as patches:
            patches.set(torch.cuda, "is_available", lambda: True)
            patches.wrap(torch.Tensor, "record_stream", note_record_stream)

    Restoring is exact: what an owner only inherited, or did not have, is deleted again, and a
    static method stays one. Whatever else the caller has to undo goes on the same stack
    (``callback``, ``enter_context``), so that everything happens in reverse order.
    """

    def __init__(self) -> None:
        super().__init__()
        self._changes: list[tuple[Any, str, Any, Any]] = []
        """Owner, name, the value before and the one set."""
        self._hooks: list[tuple[Callable[[], Any], list[Any]]] = []
        """The function that registers each hook, and its handle."""
        self._suspensions = 0
        self._lock = threading.RLock()
        self.callback(self._forget)

    def _forget(self) -> None:
        self._changes.clear()
        self._hooks.clear()

    def set(self, owner: Any, name: str, value: Any) -> None:
        """``owner.name = value``. Raises what ``setattr`` raises, and then changes nothing."""
        own = vars(owner).get(name, _MISSING)
        setattr(owner, name, value)
        self._changes.append((owner, name, own, value))
        self.callback(_restore_attribute, owner, name, own)

    def hook(self, register: Callable[[], Any]) -> None:
        """Register a hook, of which ``register`` returns the handle."""
        handles = [register()]
        self._hooks.append((register, handles))
        self.callback(lambda: handles and handles.pop().remove())

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """While entered, on whichever thread, all is as if nothing had been changed, unless
        somebody else has changed it since."""
        with self._lock:
            self._suspensions += 1
            if self._suspensions == 1:
                for owner, name, own, value in reversed(self._changes):
                    if vars(owner).get(name) is value:
                        _restore_attribute(owner, name, own)
                for _, handles in self._hooks:
                    handles.pop().remove()
        try:
            yield
        finally:
            with self._lock:
                self._suspensions -= 1
                if self._suspensions == 0:
                    for owner, name, own, value in self._changes:
                        if vars(owner).get(name, _MISSING) is own:
                            setattr(owner, name, value)
                    for register, handles in self._hooks:
                        handles.append(register())

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """``set`` where ``owner`` has the attribute; else nothing, for names that not every
        PyTorch has. A function keeps the ``__wrapped__`` of the one that it replaces: Dynamo reads
        it of many of PyTorch's."""
        original = getattr(owner, name, _MISSING)
        if original is _MISSING:
            return
        if isinstance(value, FunctionType) and hasattr(original, "__wrapped__"):
            functools.update_wrapper(value, original.__wrapped__, assigned=(), updated=())
        self.set(owner, name, value)

    def wrap(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        """Calls of ``owner.name`` go to ``wrapper(original, *args, **kwargs)``.

        Of a method, ``args`` begins with the object. AttributeError when ``owner`` has no such
        attribute.
        """
        original = getattr(owner, name)
        call = _calling(wrapper, original)
        self.set(owner, name, staticmethod(call) if _is_static(owner, name) else call)
        self._compile_as(original, call)

    def wrap_later(self, module: str, path: str, wrapper: Callable[..., Any]) -> None:
        """``wrap`` as soon as a module is imported, if it has a function or a method with this
        path (``CUDAGraphNode.check_invariants``)."""
        self.callback(
            _once_there(module, path, lambda owner, name: self.wrap(owner, name, wrapper))
        )

    def stand_in(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        """``wrap`` for a function of PyTorch: what takes its place is equal to it, because tensor
        subclasses and modes (``with torch.device("cuda")``) look up the function that was called
        (``__torch_function__``)."""
        original = getattr(owner, name)
        stand_in = _StandIn(original, functools.partial(wrapper, original))
        self.set(owner, name, stand_in)
        self._compile_as(original, stand_in)

    def _compile_as(self, original: Any, wrapper: Any) -> None:
        """TorchScript compiles calls of ``wrapper`` as calls of ``original``: it knows its
        functions by their ids."""
        compiled = script_builtins()
        if id(original) in compiled:
            compiled[id(wrapper)] = compiled[id(original)]
            self.callback(compiled.pop, id(wrapper))


class SwitchedPatches:
    """Wraps attributes while it is switched on. For what is switched on often: each wrapper is made
    once, and made again if somebody else has replaced what it calls."""

    def __init__(self, patches: Patches) -> None:
        """Modules are waited for until ``patches`` are undone."""
        self._waits = patches
        self._wrapped: list[_Wrapped] = []
        self._is_on = False

    def callback(self, end: Callable[[], object]) -> None:
        """Call ``end`` when ``patches`` are undone."""
        self._waits.callback(end)

    def wrap(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        wrapped = _Wrapped(owner, name, wrapper)
        self._wrapped.append(wrapped)
        if self._is_on:
            wrapped.set()

    def wrap_later(self, module: str, path: str, wrapper: Callable[..., Any]) -> None:
        self.callback(
            _once_there(module, path, lambda owner, name: self.wrap(owner, name, wrapper))
        )

    def switch_on(self) -> None:
        self._is_on = True
        for wrapped in self._wrapped:
            wrapped.set()

    def switch_off(self) -> None:
        self._is_on = False
        for wrapped in reversed(self._wrapped):
            wrapped.restore()


class _Wrapped:
    def __init__(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        self._place = owner, name
        self._wrapper = wrapper
        self._original: Any = _MISSING
        self._own: Any = _MISSING

    def set(self) -> None:
        owner, name = self._place
        original = getattr(owner, name)
        if original is not self._original:
            call = _calling(self._wrapper, original)
            self._original = original
            self._call = staticmethod(call) if _is_static(owner, name) else call
        self._own = vars(owner).get(name, _MISSING)
        setattr(owner, name, self._call)

    def restore(self) -> None:
        _restore_attribute(*self._place, self._own)


def _calling(wrapper: Callable[..., Any], original: Any) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    return call


def _is_static(owner: Any, name: str) -> bool:
    own = vars(owner).get(name, _MISSING)
    if own is _MISSING:  # inherited: slow to look up
        own = inspect.getattr_static(owner, name)
    return isinstance(own, staticmethod)


def _once_there(module: str, path: str, found: Callable[[Any, str], None]) -> Callable[[], None]:
    """Call ``found(owner, name)`` as soon as a module is imported, if it has something with this
    path. Returns a function that ends the waiting."""

    def imported(owner: Any) -> None:
        *owners, name = path.split(".")
        for each in owners:
            owner = getattr(owner, each, None)
        # None has `__init__`, too.
        if owner is not None and hasattr(owner, name):
            found(owner, name)

    return after_import(module, imported)


class _StandIn:
    def __init__(self, original: Any, call: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original)
        self._original = original
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __get__(self, owner: Any, _kind: Any = None) -> Any:
        return self if owner is None else types.MethodType(self, owner)

    def __eq__(self, other: object) -> bool:
        return other is self or bool(other == self._original)

    def __hash__(self) -> int:
        return hash(self._original)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """By name, as the original."""
        if isinstance(self._original, FunctionType):
            return self._original.__qualname__
        return self._original.__reduce_ex__(protocol)


def _restore_attribute(owner: Any, name: str, own: Any) -> None:
    if own is not _MISSING:
        setattr(owner, name, own)
    elif name in vars(owner):  # the patched code may have deleted it
        delattr(owner, name)


def set_profile(profile: Any) -> None:
    """Set what ``sys.getprofile`` returned: a function, None, or before Python 3.12 a cProfile of
    the program's, which ``sys.setprofile`` would call."""
    if profile is None or callable(profile):
        sys.setprofile(profile)
    else:
        profile.enable()


@contextlib.contextmanager
def without_collector(generation: int = 2) -> Iterator[None]:
    """Collect garbage of up to a generation, and then none while entered."""
    gc.collect(generation)
    with CollectorPaused():
        yield
