"""Where ops run and what they make: on the simulated GPU or on the host.

Every call of an op is intercepted above autograd (``torch_compat.call_key``). A ``cuda`` device
among its arguments becomes ``cpu``, and a move between the GPU and the host a copy. What an op of
the GPU makes is marked below autograd (``observe.tensors.put``). No mode is active, so the program
runs the ops of plain eager, except where a GPU runs others (``_LIKE_A_GPU``).
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from cgtool.detectors.function_rules import note_pinning
from cgtool.devices.simulated import collectives
from cgtool.devices.simulated.attention import attention, fused_kernels
from cgtool.devices.simulated.device_model import DeviceModel
from cgtool.devices.simulated.stale_nodes import note_stream
from cgtool.observe.frames import call_op, call_user
from cgtool.observe.tensors import (
    DEVICE,
    HOST,
    PINNED,
    all_on_host,
    is_cuda_device,
    listed_tensors,
    note_number,
    place_of,
    put,
    strided_parts,
)
from cgtool.torch_compat import call_key, op_key
from cgtool.torch_compat.dispatch_keys import Args, Kwargs
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import (
    check,
    generator_key,
    running_autograd_node,
    schema_of,
    storage_address,
)
from cgtool.torch_compat.shared_kernels import device_check

Run = Callable[..., Any]


class _Signature:
    """What the schema of an op says about places."""

    def __init__(self, op: Any) -> None:
        schema = schema_of(op)
        self.name = str(schema.name)
        self.positions = {
            argument.name: position for position, argument in enumerate(schema.arguments)
        }
        self.is_move = self.name in ("aten::to", "aten::_to_copy")
        """Whether it returns its first argument, or a copy of it in another place."""
        self.is_internal = self.name.startswith("aten::_")
        """Whether C++ calls it and Python code does not: a kernel of another op (forward mode of
        autograd, which has no Python frame), with the real device of its tensors."""
        overload = f".{schema.overload_name}" if schema.overload_name else ""
        self.device_check = device_check(self.name + overload)
        self.has_device = "device" in self.positions
        self.has_generator = "generator" in self.positions
        is_anew = self.is_move or self.name.startswith("aten::resize_")
        self.is_new = [is_anew or result.alias_info is None for result in schema.returns]
        """For each result: whether it has memory of its own, or may have been given other
        memory."""

    def argument(self, name: str, args: Args, kwargs: Kwargs) -> Any:
        position = self.positions.get(name)
        if position is not None and position < len(args):
            return args[position]
        return kwargs.get(name)

    def replaced(
        self, name: str, value: Any, args: Args, kwargs: Kwargs
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with another value for one of them."""
        position = self.positions[name]
        if position < len(args):
            return (*args[:position], value, *args[position + 1 :]), kwargs
        return args, {**kwargs, name: value}

    def put(self, result: Any, place: str, args: Args) -> None:
        """Mark the results that have new memory. A sparse tensor is made of its arguments."""
        results = result if isinstance(result, tuple) else (result,)
        for value, is_new in zip(results, self.is_new, strict=False):
            for tensor in listed_tensors((value,)):
                if tensor.layout is torch.strided:
                    if is_new:
                        put(tensor, place)
                    continue
                # Also that of a view: a transposed sparse tensor has indices of its own.
                given = {storage_address(part) for each in args for _, part in _parts(each)}
                for _, part in _parts(tensor):
                    # Not by address: that of all empty parts is 0.
                    if storage_address(part) not in given:
                        put(part, place)


def _parts(value: Any) -> list[tuple[str, torch.Tensor]]:
    return strided_parts(value) if isinstance(value, torch.Tensor) else []


class _Running(threading.local):
    """The intercepted call that runs on this thread."""

    op: Any = None
    place: str | None = None
    """Where it puts what it makes; None outside ops."""
    forced: bool = False
    """``Placement.inside`` is entered."""


class Placement:
    """Decides for every op of a program where it runs."""

    def __init__(self, device: DeviceModel) -> None:
        self.device = device
        self._running = _Running()
        self._default_generator = generator_key(device.generator)
        self._signatures: dict[int, tuple[Any, _Signature]] = {}
        self.handlers: dict[str, Callable[..., Any]] = {
            **_HANDLERS,
            "aten::scaled_dot_product_attention": partial(attention, device),
        }

    def _signature(self, op: Any) -> _Signature:
        # By id: the hash of an op is computed in Python.
        known = self._signatures.get(id(op))
        if known is None:
            known = self._signatures[id(op)] = op, _Signature(op)
        return known[1]

    @contextlib.contextmanager
    def inside(self, place: str) -> Iterator[None]:
        """Ops called here put what they make in ``place`` unless they name the GPU: for functions
        in C++ that call ops for a device of their own."""
        running = self._running
        before = running.place, running.forced
        running.place, running.forced = place, True
        try:
            yield
        finally:
            running.place, running.forced = before

    def intercept(self, op: Any, args: Args, kwargs: Kwargs, run: Run, inside: bool) -> Any:
        """Run an op that names a device, or that is made of other ops."""
        signature, running = self._signature(op), self._running
        # A formula of autograd is not inside an op: its tensors count as the GPU's.
        inherited = (running.place or DEVICE) if inside or running.forced else HOST
        if inherited == HOST and running.place is None and signature.is_internal:
            inherited = _place_of_all(args, kwargs) or DEVICE
        if signature.has_device or signature.is_move:
            place, args, kwargs = self._redirected(signature, args, kwargs, inherited)
        else:
            place = _place_of_all(args, kwargs) or inherited
        before = running.op, running.place, running.forced
        running.op, running.place, running.forced = op, place, False
        handler = self.handlers.get(signature.name)
        try:
            if handler is not None:
                return handler(place, run, *args, **kwargs)
            result = call_op(run, args, kwargs)
        finally:
            running.op, running.place, running.forced = before
        is_new = signature.has_device or signature.is_move
        if is_new and not any(result is value for value in args[:1]):
            # torch.tensor(...) turns off what is below autograd.
            signature.put(result, place, args)
            if signature.is_move and not isinstance(args[0], torch.Tensor):
                note_number(result)
        return result

    def _redirected(
        self, signature: _Signature, args: Args, kwargs: Kwargs, inherited: str
    ) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        """The place that a call names, and its arguments for the CPU."""
        named = signature.argument("device", args, kwargs)
        like = signature.argument("other", args, kwargs) if signature.is_move else None
        tensors = listed_tensors(args[:1])
        # Without tensors a number is moved, which is part of a formula.
        source = place_of(tensors[0]) if tensors else inherited if signature.is_move else HOST
        if is_cuda_device(named):
            place = DEVICE
            args, kwargs = signature.replaced("device", _CPU, args, kwargs)
        elif named is not None:
            place = inherited if named.type == "cpu" else HOST
        else:
            place = place_of(like) if isinstance(like, torch.Tensor) else source
            # A number that gets another type stays one.
            place = place if place == DEVICE and (tensors or like is not None) else HOST
            source = source if tensors else place
        crosses = (source == DEVICE) != (place == DEVICE)
        pins = signature.argument("pin_memory", args, kwargs)
        if pins:
            args, kwargs = signature.replaced("pin_memory", False, args, kwargs)
        elif signature.is_move and crosses and tensors and tensors[0].layout is torch.strided:
            # _to_copy (TensorConversions.cpp)
            pins = signature.argument("non_blocking", args, kwargs)
        if pins and place != DEVICE:
            place = PINNED
            note_pinning(self.device, signature.name)
        if crosses and signature.name == "aten::to":
            args, kwargs = signature.replaced("copy", True, args, kwargs)
        return place, args, kwargs

    def place(self, op: Any, args: Args, kwargs: Kwargs, run: Run) -> Any:
        """Run an op below autograd, and mark what it makes."""
        signature, running, device = self._signature(op), self._running, self.device
        is_users = op_key.may_have_python_kernel(signature.name)
        if not (signature.has_device or is_users or op_key.is_watched()) and all_on_host():
            # Most programs run hundreds of ops before they use the GPU, and some run no others.
            return call_op(run, args, kwargs)
        if signature.has_generator:
            generator = signature.argument("generator", args, kwargs)
            if generator is not None and generator_key(generator) == self._default_generator:
                default = torch.default_generator
                args, kwargs = signature.replaced("generator", default, args, kwargs)
        if torch.is_grad_enabled():
            leaves = [each for each in listed_tensors(args) if each.requires_grad and each.is_leaf]
            if leaves:
                note_stream(leaves, is_default=device.current is device.default)
        given = _place_of_all(args, kwargs)
        if given == DEVICE and signature.device_check is not None and not op_key.is_inside():
            is_scalar_fine = signature.device_check == "iterator"
            if _is_apart(args, kwargs, is_scalar_fine):  # only then: `check` imports sympy
                call_op(check, (False, lambda: _TWO_DEVICES.format(signature.name)), {})
        if not signature.has_device:
            place = given or running.place or HOST
        elif running.op is op and running.place is not None:
            place = running.place
        else:
            # Called by a mode or a tensor subclass, where calls are not intercepted.
            place, args, kwargs = self._redirected(signature, args, kwargs, running.place or HOST)

        is_collective = signature.name.startswith(collectives.COLLECTIVES)

        def run_and_mark(*args: Any, **kwargs: Any) -> Any:
            if is_collective:
                return collectives.run(device, op, run, args, kwargs)
            result = op_key.run_python_kernel(signature.name, partial(run, *args, **kwargs))
            signature.put(result, place, args)
            return result

        before = running.op, running.place, device.on_host
        # In a kernel of the user's own, code names its places as everywhere else.
        running.op, running.place = None, None if is_users else place
        device.on_host = DEVICE not in (given, place)
        if not device.on_host:
            device.note_library(signature.name, args)
        try:
            return op_key.run_observed(op, args, kwargs, run_and_mark)
        finally:
            running.op, running.place, device.on_host = before


def _place_of_all(args: Args, kwargs: Kwargs) -> str | None:
    """On the GPU if one of the tensors is; None without tensors."""
    tensors = listed_tensors(args)
    if kwargs:
        tensors += listed_tensors(kwargs.values())
    if not tensors:
        return None
    for tensor in tensors:
        if place_of(tensor) == DEVICE:
            return DEVICE
    return HOST


def _is_apart(args: Args, kwargs: Kwargs, is_scalar_fine: bool) -> bool:
    """Whether a tensor is on the host; with ``is_scalar_fine`` one that has dimensions."""
    tensors = listed_tensors((*args, *kwargs.values()))
    return any(
        place_of(tensor) != DEVICE
        and tensor.device.type == "cpu"
        and not (is_scalar_fine and tensor.dim() == 0)
        for tensor in tensors
    )


_TWO_DEVICES = (
    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and "
    "cpu! (when checking the arguments of {})"
)
_CPU = torch.device("cpu")


@contextlib.contextmanager
def placed(device: DeviceModel) -> Iterator[Placement]:
    """While entered, ops of this thread, and of those that it starts, run in their place."""
    placement = Placement(device)
    op_key.pass_over(Placement.intercept.__code__, Placement.place.__code__, call_op.__code__)

    def run_thread(original: Any, thread: threading.Thread) -> None:
        with call_key.intercept_thread(), op_key.watch_thread():
            call_user(original, thread)

    with Patches() as patches:
        patches.enter_context(op_key.place(placement.place))
        patches.enter_context(call_key.intercept(placement.intercept, placement.handlers))
        patches.enter_context(fused_kernels())
        # Around `run`, the traceback of a thread would begin here.
        patches.wrap(threading.Thread, "_bootstrap_inner", run_thread)
        yield placement


def place_main_thread() -> None:
    """Ops of the main thread run in their place from now on: this thread is another, and began to
    place. Only a thread itself can switch its keys, so Python calls back on it."""

    def enter(_: object) -> int:
        for context in (call_key.intercept_thread(), op_key.watch_thread()):
            context.__enter__()
            _kept.append(context)
        return 0

    callback = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(enter)
    _kept.append(callback)
    ctypes.pythonapi.Py_AddPendingCall(callback, None)


_kept: list[object] = []


def _one_hot(place: str, run: Run, tensor: torch.Tensor, num_classes: int = -1) -> Any:
    # With num_classes the op reads nothing on the host on a GPU; on the CPU it does.
    if place != DEVICE or num_classes < 0:
        return call_op(run, (tensor, num_classes), {})
    shape = (*tensor.shape, num_classes)
    zeros = torch.zeros(shape, dtype=torch.int64, device=tensor.device)
    return zeros.scatter_(-1, tensor.unsqueeze(-1), 1)


def _dropout(place: str, run: Run, input: torch.Tensor, p: float, train: bool) -> Any:
    # One fused op on a GPU (at::native::dropout), several ops on the CPU.
    if place == DEVICE and train and 0 < p < 1 and input.numel():
        return torch.native_dropout(input, p, True)[0]
    return call_op(run, (input, p, train), {})


def _histc(place: str, run: Run, input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    # The CPU kernel takes only floating-point numbers.
    if place != DEVICE or input.is_floating_point():
        return call_op(run, (input, *args), kwargs)
    return torch.histc(input.to(torch.float64), *args, **kwargs).to(input.dtype)


def _index_put(
    _place: str, run: Run, tensor: torch.Tensor, indices: Any, values: torch.Tensor, *args: Any
) -> Any:
    # The backward of `x[mask] = 0.0` puts a zero where the number was: on the host, as the number
    # (`values_info.zeros()`, derivatives.yaml). A value of the GPU is refused in forward.
    node = running_autograd_node()
    if node is not None and node.name().startswith("IndexPutBackward") and values.dim() == 0:
        masks = (torch.bool, torch.uint8)
        if any(index is not None and index.dtype in masks for index in indices):
            put(values, HOST)
    return call_op(run, (tensor, indices, values, *args), {})


def _pack_or_pad(_place: str, run: Run, *args: Any, **kwargs: Any) -> Any:
    # The batch sizes or lengths are on the host, on a GPU too.
    data, sizes = call_op(run, args, kwargs)
    put(sizes, HOST)
    return data, sizes


def _pin_memory(_place: str, _run: Run, tensor: torch.Tensor, *_: Any, **__: Any) -> Any:
    if place_of(tensor) == PINNED:
        return tensor
    pinned = tensor.clone()
    put(pinned, PINNED)
    return pinned


def _is_pinned(_place: str, _run: Run, tensor: torch.Tensor, *_: Any, **__: Any) -> bool:
    return place_of(tensor) == PINNED


_HANDLERS: dict[str, Callable[..., Any]] = {
    "aten::one_hot": _one_hot,
    "aten::dropout": _dropout,
    "aten::histc": _histc,
    "aten::index_put": _index_put,
    "aten::_pack_padded_sequence": _pack_or_pad,
    "aten::_pad_packed_sequence": _pack_or_pad,
    "aten::pin_memory": _pin_memory,
    "aten::is_pinned": _is_pinned,
}
"""Ops that a GPU runs in another way than the CPU: ``handler(place, run, *args, **kwargs)``."""
