"""Python kernels for all ops, on a dispatch key that PyTorch does not use."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch

from cgtool.torch_compat import private

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Kernel = Callable[..., Any]
"""``kernel(keyset, op, *args, **kwargs)``"""

NUMBERS = frozenset((int, float, complex, bool))
try:
    _PLAIN_KEYS = private.included_keys(), private.excluded_keys()
    """The keys of a thread outside any op."""
except (private.MissingPrivateName, RuntimeError):
    _PLAIN_KEYS = None, None
_FUNCTORCH = private.parse_key("FuncTorchDynamicLayerBackMode")


def unused_key(*names: str) -> tuple[str, Any]:
    """(name, key) of the first of these keys that this PyTorch has no kernel on; ("", None) if
    there is none."""
    for name in names:
        try:
            key = private.parse_key(name)
            if not private.has_fallback(key):
                return name, key
        except (private.MissingPrivateName, RuntimeError):
            continue
    return "", None


class Kernels:
    """The kernels of a key: one for all ops, or one for each of some."""

    def __init__(self, name: str, key: Any, kernel: Kernel) -> None:
        self.name = name
        self.key = key
        self.kernel = kernel
        self._libraries: dict[str, Any] = {}
        """The libraries that hold the kernel for all ops ("_") and, by namespace, what lets ops
        pass."""
        self._own_libraries: dict[str, Any] = {}
        """The libraries that hold the kernels of single ops, by namespace."""
        self._installed: Callable[[int], Any] | None = None
        """The function that installed the kernel for all ops, if it is not the one in Python."""
        self._passed: set[str] = set()
        """Ops that pass."""
        self._owners: set[str] = set()
        """Ops that have a kernel of their own."""
        self._listed: tuple[int, ...] | None = None
        """``ops_version`` when all ops were listed, which takes milliseconds."""

    def register_all(self, is_above_python: bool, needed: Iterable[str] | None = None) -> None:
        """Put them on the key, for all ops. ``is_above_python``: modes and tensor subclasses come
        after it. ``needed``: the only ops that one of these may run; None: any."""
        self._pass(self.kernel)
        if not is_above_python or self._installed is not None:
            return
        # Where a mode or a tensor subclass takes part, PyTorch looks for a kernel of the op, and
        # fails if there is only one in Python for all ops.
        if needed is not None:
            self.implement(needed)
            return
        version = private.ops_version()
        if version != self._listed:
            self.implement(private.op_names())
            self._listed = version

    def register_some(self, names: Iterable[str]) -> None:
        """Put them on the key, for these ops. The others pass."""
        self._pass(torch.library.fallthrough_kernel)
        self.implement(names)

    def let_through(self, names: Iterable[str]) -> None:
        """These ops pass, in this process, unless the kernels are on the key already."""
        if not self._libraries:
            self._let_pass(names)

    def replace(self, install: Callable[[int], Any] | None) -> None:
        """``install(key)`` puts another kernel for all ops instead of those in Python, for as long
        as what it returns exists. None: those in Python. No thread may have the key switched on."""
        if install is not self._installed:
            self._libraries.pop("_", None)
            self._own_libraries.clear()
            self._owners.clear()
            self._listed = None
            if install is not None:
                self._libraries["_"] = install(int(self.key))
            self._installed = install

    def _pass(self, fallback: Any) -> None:
        if "_" not in self._libraries:
            library = private.dispatch_library("IMPL", "_", self.name, __file__, 1)
            library.fallback(self.key, fallback, fallback is self.kernel)
            self._libraries["_"] = library
            # nn.Parameter(...) makes a subclass of what it detached, and that must have no Python
            # object yet: the results of ops that pass through Python have one.
            self._let_pass(("aten::detach", "aten::alias"))

    def _let_pass(self, names: Iterable[str]) -> None:
        for name in set(names) - self._passed - self._owners:
            self._passed.add(name)
            self._implement(self._libraries, name, torch.library.fallthrough_kernel, False)

    def implement(self, names: Iterable[str]) -> None:
        """Put a kernel of its own on the key for each of these ops."""
        new = set(names) - self._passed - self._owners
        if not new:
            return
        self._owners |= new
        with warnings.catch_warnings():
            # PyTorch takes it for a change of the kernel that an op has on all keys.
            warnings.filterwarnings("ignore", "(?s).*", UserWarning)
            for name in new:
                self._implement(self._own_libraries, name, OpKernel(name, self.kernel), True)

    def _implement(
        self, libraries: dict[str, Any], name: str, kernel: Any, with_keyset: bool
    ) -> None:
        namespace, _, op_name = name.partition("::")
        if namespace not in libraries:
            libraries[namespace] = private.dispatch_library("IMPL", namespace, "", __file__, 1)
        libraries[namespace].impl(op_name, self.name, kernel, with_keyset)


class OpKernel:
    def __init__(self, name: str, kernel: Kernel) -> None:
        self.name = name
        self.kernel = kernel
        self.op: Any = None

    def __call__(self, keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if self.op is None:
            qualified, _, overload = self.name.partition(".")
            namespace, _, name = qualified.partition("::")
            self.op = getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
        return self.kernel(keyset, self.op, *args, **kwargs)


class Dispatch:
    """How an op goes on from a key."""

    def __init__(self, op: Any) -> None:
        self.op = op
        self.redispatch = private.redispatcher(op)
        self.tensors = tuple(
            position
            for position, argument in enumerate(private.schema_of(op).arguments)
            if argument.type.kind() == "TensorType"
        )
        """Positions of arguments for which the dispatcher hands over a number as it is."""

    def run(self, below: Any, *args: Any, **kwargs: Any) -> Any:
        """The op itself, with tensors instead of numbers. A frame of this in a traceback says that
        the op failed, and not what observes it (``cgtool.program.boundary``)."""
        tensors = list(args)
        count = len(args)
        numbers = 0
        for position in self.tensors:
            if position < count and type(args[position]) in NUMBERS:
                tensors[position] = wrapped_number(args[position])
                numbers += 1
        if numbers and numbers == len(self.tensors) and below.has(_FUNCTORCH):
            # A number belongs to no level of functorch, but the keys are those of a tensor of one.
            with private.force_keys(*_PLAIN_KEYS):
                return self.op(*tensors, **kwargs)
        return self.redispatch(below, *tensors, **kwargs)


def is_unconvertible(error: Exception) -> bool:
    """Whether PyTorch could not pass an op's arguments to a kernel in Python.

    It passes a wrapped number as a number, and reads it only on the CPU (pybind_utils.cpp). The
    kernels of ``2 ** x`` and ``isin(2, x)`` wrap one on the device of the tensor and call
    themselves with it (Pow.cpp, TensorCompare.cpp).
    """
    return "pybind_utils.cpp" in str(error)


RUN_CODE = Dispatch.run.__code__
OP_KERNEL_CODE = OpKernel.__call__.__code__

_ONE = torch.ones((), requires_grad=True, device="cpu")


def wrapped_number(number: complex) -> torch.Tensor:
    """The tensor that the dispatcher makes of a Python number: type promotion treats it as one.

    No function returns such a tensor to Python, but a product keeps its factors.
    """
    # 0.0 and -0.0 are equal, but not their texts.
    return _kept_number(number, "" if number else str(number))


@functools.lru_cache(maxsize=1024, typed=True)
def _kept_number(number: complex, _text: str) -> torch.Tensor:
    with (
        private.force_keys(*_PLAIN_KEYS), torch.inference_mode(False), torch.enable_grad(),
        private.no_torch_function(),
    ):  # fmt: skip
        return private.saved_factor(torch.mul(_ONE, number))
