"""Every torch function that the user's code calls, redirected from ``cuda`` to the CPU.

A tensor on the simulated GPU reports ``cuda:0`` as its device, a host tensor ``cpu``, and a move
between the two is a copy. So code that reads the device of a tensor, and libraries that decide by
it (foreach optimizers, checkpointing), do what they do on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from cgtool.detectors import function_rules as rules
from cgtool.detectors.function_rules import is_number, names_gpu, target_of
from cgtool.devices.simulated.device_model import DeviceModel
from cgtool.observe.frames import call_op
from cgtool.observe.placement import (
    DEVICE,
    HOST,
    PINNED,
    is_cuda_device,
    on_host,
    place_of,
    put,
    tensors_of,
)
from cgtool.torch_compat.private import (
    OpOverload,
    current_device,
    device_constructors,
    pack_padded_sequence,
    parse_to,
)

_FIELDS: Any = torch.Tensor
_DEVICE_GETTER = _FIELDS.device.__get__
_IS_CUDA = _FIELDS.is_cuda.__get__
_IS_CPU = _FIELDS.is_cpu.__get__
_GETTERS = frozenset((_DEVICE_GETTER, _IS_CUDA, _IS_CPU, torch.Tensor.get_device))
_GPU = torch.device("cuda", 0)
_NAMES_DEVICES = frozenset((torch.device, parse_to))
"""They return the device that they are given: ``Module.to`` passes it on."""


def _ask(func: Any, tensor: torch.Tensor) -> Any:
    host = on_host(tensor)
    if func == _IS_CUDA:
        return not host
    if func == _IS_CPU:
        return host
    if func is torch.Tensor.get_device:
        return -1 if host else 0
    return torch.device("cpu") if host else _GPU


def _cpu(value: Any) -> Any:
    return "cpu" if is_cuda_device(value) else value


class FunctionMode(TorchFunctionMode):
    """Replaces ``cuda`` devices among arguments by ``cpu``, and marks the place of results."""

    def __init__(self, device: DeviceModel) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in _NAMES_DEVICES:
            return call_op(func, args, kwargs)
        if func in _GETTERS:
            return _ask(func, args[0])
        if self.device.capturing:
            check = rules.FUNCTIONS.get(func)
            if check is not None:
                check(self.device, args, kwargs)
        if func is torch.Tensor.to:
            return self._move(args, kwargs, target_of(args, kwargs), func)
        if func is torch.Tensor.cuda:
            return self._move(args[:1], {}, DEVICE, torch.Tensor.to)
        if func is torch.Tensor.cpu:
            return self._move(args[:1], {}, HOST, torch.Tensor.to)
        if func is torch.Tensor.pin_memory:
            return self._pinned(args[0])
        if func is torch.Tensor.is_pinned:
            return place_of(args[0]) == PINNED
        like_a_gpu = _LIKE_A_GPU.get(func)
        if like_a_gpu is not None and not on_host(args[0]):
            return like_a_gpu(self, *args, **kwargs)
        return self._call(func, args, kwargs)

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        device = self.device
        place, kwargs = self._place(func, args, kwargs)
        if place == DEVICE and device.capturing and func in rules.FROM_PYTHON:
            rules.refuse_from_python(device, args, kwargs)
        args = tuple(_cpu(value) for value in args)
        kwargs = {key: _cpu(value) for key, value in kwargs.items()}
        pinned = kwargs.pop("pin_memory", False)
        if pinned:
            rules.note_pinning(device)
        before = device.on_host, device.fills_mask, device.function
        device.on_host = place != DEVICE
        device.function = func
        device.fills_mask = func is torch.Tensor.__setitem__ and is_number(args[2])
        try:
            result = call_op(func, args, kwargs)
        finally:
            device.on_host, device.fills_mask, device.function = before
        if place != DEVICE:
            given = set(map(id, tensors_of((*args, *kwargs.values()))))
            for tensor in tensors_of((result,)):
                if id(tensor) not in given:
                    put(tensor, PINNED if pinned else place)
        return result

    def _place(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        """The place of the results of a call; with a device added if only a context named it."""
        wanted = kwargs.get("device")
        inner = isinstance(func, OpOverload)
        if inner and not is_cuda_device(wanted):
            # Ops of autograd that a recorder runs again: C++ names the CPU as their device.
            wanted = None
        if wanted is not None:
            if isinstance(wanted, int):
                return DEVICE, kwargs | {"device": "cpu"}
            return (DEVICE if is_cuda_device(wanted) else HOST), kwargs
        tensors = list(tensors_of((*args, *kwargs.values())))
        if tensors:
            return (HOST if all(map(on_host, tensors)) else DEVICE), kwargs
        chosen = current_device()
        if chosen is not None and is_cuda_device(chosen):
            makes = func in device_constructors()
            return DEVICE, (kwargs | {"device": "cpu"} if makes else kwargs)
        return (DEVICE if inner else HOST), kwargs

    def _move(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], target: str | None, func: Any
    ) -> Any:
        """``Tensor.to``: always a copy between host and device."""
        tensor: torch.Tensor = args[0]
        source = place_of(tensor)
        crosses = target is not None and (source == DEVICE) != (target == DEVICE)
        converted = tuple("cpu" if names_gpu(value) else value for value in args[1:])
        kwargs = {key: "cpu" if names_gpu(value) else value for key, value in kwargs.items()}
        kwargs.pop("non_blocking", None)
        before, self.device.on_host = self.device.on_host, source != DEVICE and target != DEVICE
        try:
            moved: torch.Tensor = call_op(func, (tensor, *converted), kwargs)
            if crosses and moved.data_ptr() == tensor.data_ptr():
                moved = moved.clone()
        finally:
            self.device.on_host = before
        if moved is not tensor:
            put(moved, source if target is None else target)
        return moved

    def _pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        pinned = tensor.clone()
        put(pinned, PINNED)
        return pinned


def _one_hot(mode: FunctionMode, tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    # With num_classes the op reads nothing on the host on a GPU; on the CPU it does.
    if num_classes < 0:
        encoded: torch.Tensor = mode._call(torch.nn.functional.one_hot, (tensor, num_classes), {})
        return encoded
    zeros = torch.zeros((*tensor.shape, num_classes), dtype=torch.int64)
    return zeros.scatter_(-1, tensor.unsqueeze(-1), 1)


def _dropout(
    mode: FunctionMode,
    input: torch.Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> torch.Tensor:
    # One fused op on a GPU (at::native::dropout), several ops on the CPU.
    result: torch.Tensor
    if training and not inplace and 0 < p < 1 and input.numel():
        result, _ = torch.native_dropout(input, p, True)
    else:
        result = mode._call(_DROPOUT, (input, p, training, inplace), {})
    return result


def _histc(mode: FunctionMode, input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    # The CPU kernel takes only floating-point numbers.
    counts: torch.Tensor
    if input.is_floating_point():
        counts = mode._call(torch.histc, (input, *args), kwargs)
    else:
        counts = torch.histc(input.to(torch.float64), *args, **kwargs).to(input.dtype)
    return counts


def _packed(mode: FunctionMode, *args: Any, **kwargs: Any) -> Any:
    # The batch sizes are on the host, on a GPU too.
    data, sizes = mode._call(_PACK, args, kwargs)
    put(sizes, HOST)
    return data, sizes


_PACK = pack_padded_sequence
_DROPOUT = torch.nn.functional.dropout
_LIKE_A_GPU: dict[Any, Callable[..., Any]] = {
    torch.nn.functional.one_hot: _one_hot,
    _DROPOUT: _dropout,
    _PACK: _packed,
    torch.histc: _histc,
    torch.Tensor.histc: _histc,
}
"""Functions that run other ops on a GPU than on the CPU."""
