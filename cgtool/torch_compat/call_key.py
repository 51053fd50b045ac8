"""Calls of ops as the program makes them, intercepted on a dispatch key that nothing uses.

This key lies above functorch, autograd and autocast. So ops that are made of others (``aten::to``,
``aten::dropout``) arrive whole, and ops that name a device before any kernel of PyTorch looks at
it, whether Python code calls them, another op, or autograd. No mode is active, so Python and ATen
take the paths of plain eager. Other ops pass, and this key is off inside the kernel of an op that
``op_key`` observes.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from cgtool.torch_compat import op_key, private
from cgtool.torch_compat.dispatch_keys import (
    OP_KERNEL_CODE,
    RUN_CODE,
    Dispatch,
    Kernels,
    unused_key,
)

Interceptor = Callable[[Any, tuple[Any, ...], dict[str, Any], Callable[..., Any], bool], Any]
"""``interceptor(op, args, kwargs, run, inside)`` returns the result of a call; ``run(*args,
**kwargs)`` goes on with it. ``inside``: called by C++, in another op or in a formula of autograd,
and not by Python code."""

_NAME, _KEY = unused_key("TESTING_ONLY_GenericMode", "AutocastIPU", "AutocastHPU")
"""Only used in PyTorch's tests; or autocast of a backend that a build for GPUs does not have."""
_FRONT, _BACK = map(
    private.parse_key, ("FuncTorchDynamicLayerFrontMode", "FuncTorchDynamicLayerBackMode")
)
_dispatches: dict[int, tuple[Dispatch, dict[int, Any]]] = {}
"""By id of the op: how it goes on, and the keys below for each key set."""
_interceptor: Interceptor | None = None


def _kernel(keyset: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    """The kernel of the ops on the key."""
    known = _dispatches.get(id(op))
    if known is None:
        known = _dispatches[id(op)] = Dispatch(op), {}
    dispatch, keys = known
    number = keyset.raw_repr()
    below = keys.get(number)
    if below is None:
        below = keys[number] = keyset.remove(_KEY)
    if _interceptor is None or _is_traced(keyset, args):
        return dispatch.run(below, *args, **kwargs)
    caller = sys._getframe().f_back
    if caller is not None and caller.f_code is OP_KERNEL_CODE:
        caller = caller.f_back
    # Autograd runs its formulas on the thread that called backward, or on its own. Functorch takes
    # the key of its front away while it runs its rules.
    inside = (
        caller is None
        or caller.f_code in _RUNS_FORMULAS
        or (keyset.has(_BACK) and not keyset.has(_FRONT))
    )
    return _interceptor(op, args, kwargs, functools.partial(dispatch.run, below), inside)


def _is_traced(keyset: Any, args: tuple[Any, ...]) -> bool:
    """Whether the op goes to a FakeTensorMode, which knows its device, or to what records it."""
    if private.runs_meta_kernels():
        return True
    return keyset.has(_PYTHON) and (
        private.is_traced()
        or any(map(private.is_fake, (arg for arg in args if isinstance(arg, torch.Tensor))))
    )


_PYTHON = private.parse_key("Python")
_RUNS_FORMULAS = (RUN_CODE, getattr(*private.BACKWARD).__code__)
"""In frames of these the ops of formulas of autograd are called, if in any."""


_kernels = Kernels(_NAME, _KEY, _kernel)
CALL_KERNEL_CODE = _kernel.__code__
op_key.pass_over(CALL_KERNEL_CODE)


@functools.cache
def _intercepted() -> list[str]:
    """Ops that name a device or are made of others."""
    names: list[str] = []
    for name in private.op_names():
        op, _, overload = name.partition(".")
        with contextlib.suppress(RuntimeError):  # an op without a schema has no kernels
            if private.is_made_of_others(name) or "Device" in str(private.schema(op, overload)):
                names.append(name)
    return names


@contextlib.contextmanager
def intercept(interceptor: Interceptor, others: Iterable[str]) -> Iterator[None]:
    """While entered, ``interceptor`` runs the ops that name a device, those that are made of other
    ops, and ``others``, on this thread and on autograd's for it.

    Raises MissingPrivateName if this PyTorch has no such key.
    """
    global _interceptor
    before, _interceptor = _interceptor, interceptor
    if _KEY is None:
        raise private.MissingPrivateName(
            f"PyTorch {torch.__version__} uses all of its dispatch keys"
        )
    _kernels.register_some((*_intercepted(), *others))
    try:
        with op_key.kept_off_inside(_KEY), intercept_thread():
            yield
    finally:
        _interceptor = before


@contextlib.contextmanager
def intercept_thread() -> Iterator[None]:
    """Calls of this thread go to the interceptor too: a new thread starts without it."""
    for higher_order_op in private.higher_order_ops.values():
        if not higher_order_op.has_kernel_for_dispatch_key(_KEY):
            higher_order_op.fallthrough(_KEY)
    # Keys of autocast are excluded until it is entered, and exclusion wins.
    private.exclude_key(_KEY, False)
    private.include_key(_KEY, True)
    try:
        yield
    finally:
        private.include_key(_KEY, False)
        private.exclude_key(_KEY, True)
