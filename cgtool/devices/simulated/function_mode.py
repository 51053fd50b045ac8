"""Every torch function that the user's code calls, led from ``cuda`` to the CPU.

The mode keeps the pretence whole: a tensor of the GPU says that its device is ``cuda:0``, one of
the host says ``cpu``, and a move between the two is a copy. So code that asks a tensor for its
device, and libraries that choose by it (foreach optimizers, checkpointing), do what they do on a
GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from cgtool.detectors import function_rules as rules
from cgtool.detectors.function_rules import is_number, refuse_move, target_of
from cgtool.devices.simulated.device import Device
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
"""They answer with the device that they were asked for: ``Module.to`` passes it on."""


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
    """Every ``cuda`` device in an argument becomes ``cpu``, and results know their place."""

    def __init__(self, device: Device) -> None:
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
            rules.note_pinning(self.device)
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
        args = tuple(_cpu(one) for one in args)
        kwargs = {key: _cpu(one) for key, one in kwargs.items()}
        pinned = kwargs.pop("pin_memory", False)
        if pinned:
            rules.note_pinning(device)
        before = device.on_host, device.fills_mask, device.function
        device.on_host = place != DEVICE
        device.function = func
        device.fills_mask = func is torch.Tensor.__setitem__ and is_number(args[2])
        try:
            made = call_op(func, args, kwargs)
        finally:
            device.on_host, device.fills_mask, device.function = before
        if place != DEVICE:
            given = {id(one) for one in tensors_of((*args, *kwargs.values()))}
            for one in tensors_of((made,)):
                if id(one) not in given:
                    put(one, PINNED if pinned else place)
        return made

    def _place(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        """Where the results of a call lie; with a device when only a context named one."""
        wanted = kwargs.get("device")
        inner = isinstance(func, OpOverload)
        if inner and not is_cuda_device(wanted):
            # Autograd's own ops, run again by a recorder: C++ names the CPU that they run on.
            wanted = None
        if wanted is not None:
            if isinstance(wanted, int):
                return DEVICE, kwargs | {"device": "cpu"}
            return (DEVICE if is_cuda_device(wanted) else HOST), kwargs
        tensors = list(tensors_of((*args, *kwargs.values())))
        if tensors:
            return (HOST if all(on_host(one) for one in tensors) else DEVICE), kwargs
        chosen = current_device()
        if chosen is not None and is_cuda_device(chosen):
            makes = func in device_constructors()
            return DEVICE, (kwargs | {"device": "cpu"} if makes else kwargs)
        return (DEVICE if inner else HOST), kwargs

    def _move(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], target: str | None, func: Any
    ) -> Any:
        """``Tensor.to``: between host and device always a copy."""
        tensor: torch.Tensor = args[0]
        source = place_of(tensor)
        crosses = target is not None and (source == DEVICE) != (target == DEVICE)
        refuse_move(self.device, source, target)
        converted = tuple("cpu" if _names_gpu(one) else one for one in args[1:])
        kwargs = {key: "cpu" if _names_gpu(one) else one for key, one in kwargs.items()}
        kwargs.pop("non_blocking", None)
        before, self.device.on_host = self.device.on_host, source != DEVICE and target != DEVICE
        try:
            made: torch.Tensor = call_op(func, (tensor, *converted), kwargs)
            if crosses and made.data_ptr() == tensor.data_ptr():
                made = made.clone()
        finally:
            self.device.on_host = before
        if made is not tensor:
            put(made, source if target is None else target)
        return made

    def _pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        made = tensor.clone()
        put(made, PINNED)
        return made


def _names_gpu(value: Any) -> bool:
    return is_cuda_device(value) or (isinstance(value, int) and not isinstance(value, bool))


def _one_hot(mode: FunctionMode, tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    # With num_classes a GPU checks nothing on the host; the CPU's own op does.
    if num_classes < 0:
        made: torch.Tensor = mode._call(torch.nn.functional.one_hot, (tensor, num_classes), {})
        return made
    zeros = torch.zeros((*tensor.shape, num_classes), dtype=torch.int64)
    return zeros.scatter_(-1, tensor.unsqueeze(-1), 1)


def _dropout(
    mode: FunctionMode,
    input: torch.Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> torch.Tensor:
    # One fused op on a GPU (at::native::dropout), several on the CPU.
    made: torch.Tensor
    if training and not inplace and 0 < p < 1 and input.numel():
        made, _ = torch.native_dropout(input, p, True)
    else:
        made = mode._call(_DROPOUT, (input, p, training, inplace), {})
    return made


def _histc(mode: FunctionMode, input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    # A GPU counts integers too, the CPU floating-point numbers alone.
    made: torch.Tensor
    if input.is_floating_point():
        made = mode._call(torch.histc, (input, *args), kwargs)
    else:
        made = torch.histc(input.to(torch.float64), *args, **kwargs).to(input.dtype)
    return made


def _packed(mode: FunctionMode, *args: Any, **kwargs: Any) -> Any:
    # The sizes of the batches are the host's on a GPU too.
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
"""Functions that take another way on a GPU than on the CPU, and so other ops."""
