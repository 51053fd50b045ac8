"""The simulated device in place of a GPU during a session: functions and classes of PyTorch are
replaced by name, and every torch function is redirected from ``cuda`` to the CPU.

A tensor on the simulated GPU reports ``cuda:0`` as its device, a host tensor ``cpu``, and a move
between the two is a copy. So code that reads the device of a tensor, and libraries that decide by
it (foreach optimizers, checkpointing), do what they do on a GPU. Ops are observed below this, on a
dispatch key; but which function the user called, and what a tensor says of itself, no op shows.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from cgtool.detectors import function_rules as rules
from cgtool.detectors.function_rules import is_number, names_gpu, target_of
from cgtool.devices.simulated.cuda_calls import accelerator_calls, cuda_calls, memory_calls
from cgtool.devices.simulated.device_model import DeviceModel
from cgtool.findings import code
from cgtool.observe.annotations import install as watch_for_ranges
from cgtool.observe.frames import call_op
from cgtool.observe.tensors import (
    DEVICE,
    HOST,
    PINNED,
    is_cuda_device,
    on_host,
    place_of,
    put,
    tensors_of,
)
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import (
    BACKWARD,
    CAPTURABLE_DEVICES,
    GROUP_TENSORS,
    MAKE_WRAPPER_SUBCLASS,
    OpOverload,
    current_device,
    determinism_checks,
    device_constructors,
    pack_padded_sequence,
    parse_to,
)

RNG_NEW_GENERATOR = code("rng-new-generator")

_FIELDS: Any = torch.Tensor
_DEVICE_GETTER = _FIELDS.device.__get__
_IS_CUDA = _FIELDS.is_cuda.__get__
_IS_CPU = _FIELDS.is_cpu.__get__
_GETTERS = frozenset((_DEVICE_GETTER, _IS_CUDA, _IS_CPU, torch.Tensor.get_device))
_GPU = torch.device("cuda", 0)
_NAMES_DEVICES = frozenset((torch.device, parse_to))
"""Functions that return the device they are given: ``Module.to`` passes it on."""


def _device_property(func: Any, tensor: torch.Tensor) -> Any:
    if tensor.is_meta:
        return call_op(func, (tensor,), {})
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
            return _device_property(func, args[0])
        if self.device.capturing:
            check = rules.FUNCTIONS.get(func)
            if check is not None:
                check(self.device, args, kwargs)
        if func is torch.Tensor.to:
            return self._move(args, kwargs, target_of(args, kwargs))
        if func is torch.Tensor.cuda:
            return self._move(args[:1], {}, DEVICE)
        if func is torch.Tensor.cpu:
            return self._move(args[:1], {}, HOST)
        if func is torch.Tensor.pin_memory:
            pinned = args[0].clone()
            put(pinned, PINNED)
            return pinned
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
            # Ops that a replay runs again: they were recorded with the CPU as their device.
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

    def _move(self, args: tuple[Any, ...], kwargs: dict[str, Any], target: str | None) -> Any:
        """``Tensor.to``: always a copy between host and device."""
        tensor: torch.Tensor = args[0]
        source = place_of(tensor)
        crosses = target is not None and (source == DEVICE) != (target == DEVICE)
        converted = tuple("cpu" if names_gpu(value) else value for value in args[1:])
        kwargs = {key: "cpu" if names_gpu(value) else value for key, value in kwargs.items()}
        kwargs.pop("non_blocking", None)
        before, self.device.on_host = self.device.on_host, source != DEVICE and target != DEVICE
        try:
            moved: torch.Tensor = call_op(torch.Tensor.to, (tensor, *converted), kwargs)
            if crosses and moved.data_ptr() == tensor.data_ptr():
                moved = moved.clone()
        finally:
            self.device.on_host = before
        if moved is not tensor:
            put(moved, source if target is None else target)
        return moved


def _one_hot(mode: FunctionMode, tensor: torch.Tensor, num_classes: int = -1) -> Any:
    # With num_classes the op reads nothing on the host on a GPU; on the CPU it does.
    if num_classes < 0:
        return mode._call(torch.nn.functional.one_hot, (tensor, num_classes), {})
    zeros = torch.zeros((*tensor.shape, num_classes), dtype=torch.int64)
    return zeros.scatter_(-1, tensor.unsqueeze(-1), 1)


def _dropout(
    mode: FunctionMode,
    input: torch.Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> Any:
    # One fused op on a GPU (at::native::dropout), several ops on the CPU.
    if training and not inplace and 0 < p < 1 and input.numel():
        return torch.native_dropout(input, p, True)[0]
    return mode._call(torch.nn.functional.dropout, (input, p, training, inplace), {})


def _histc(mode: FunctionMode, input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    # The CPU kernel takes only floating-point numbers.
    if input.is_floating_point():
        return mode._call(torch.histc, (input, *args), kwargs)
    return torch.histc(input.to(torch.float64), *args, **kwargs).to(input.dtype)


def _packed(mode: FunctionMode, *args: Any, **kwargs: Any) -> Any:
    # The batch sizes are on the host, on a GPU too.
    data, sizes = mode._call(pack_padded_sequence, args, kwargs)
    put(sizes, HOST)
    return data, sizes


_LIKE_A_GPU: dict[Any, Callable[..., Any]] = {
    torch.nn.functional.one_hot: _one_hot,
    torch.nn.functional.dropout: _dropout,
    pack_padded_sequence: _packed,
    torch.histc: _histc,
    torch.Tensor.histc: _histc,
}
"""Functions that run different ops on a GPU than on the CPU."""


class _Autocast(torch.autocast):
    """``torch.autocast("cuda", ...)`` as autocast of the CPU, with the same dtype."""

    def __init__(self, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        super().__init__(device_type, dtype, *args, **kwargs)


class _CudaAutocast(_Autocast):
    """``torch.cuda.amp.autocast``."""

    def __init__(self, enabled: bool = True, dtype: Any = None, cache_enabled: bool = True) -> None:
        super().__init__("cuda", dtype, enabled, cache_enabled)


def _generator_class(device: DeviceModel) -> type[torch.Generator]:
    class Generator(torch.Generator):
        """``torch.Generator("cuda")`` as a generator of the CPU."""

        place: torch.device

        @property
        def device(self) -> torch.device:  # type: ignore[override] # reads a C attribute
            return self.place

        def __new__(cls, where: Any = "cpu", **kwargs: Any) -> Generator:
            where = kwargs.get("device", where)
            on_gpu = is_cuda_device(where) or isinstance(where, int)
            if on_gpu:
                device.refuse(
                    RNG_NEW_GENERATOR,
                    "constructing a torch.Generator on the GPU",
                    why="its state would have to live on the device: PyTorch refuses to construct "
                    "one during capture",
                    fix="construct it once, outside the captured code",
                )
                where = "cpu"
            make: Any = super().__new__
            generator: Generator = make(cls, where)
            generator.place = _GPU if on_gpu else torch.device("cpu")
            return generator

    return Generator


def _compile(model: Any = None, **_options: Any) -> Any:
    """``torch.compile`` that compiles nothing: a GPU's backend would decide what it fuses, and the
    ops that it starts from are those that run eagerly."""
    return model if model is not None else lambda function: function


@contextlib.contextmanager
def redirected(device: DeviceModel) -> Iterator[None]:
    """``torch.cuda`` reports one simulated GPU while the context is entered."""
    mode = FunctionMode(device)
    run_backward = getattr(*BACKWARD)
    group_tensors = getattr(*GROUP_TENSORS)
    load, from_numpy = torch.load, torch.from_numpy
    make_wrapper: Any = getattr(*MAKE_WRAPPER_SUBCLASS)
    enabled, dtype = torch.is_autocast_enabled, torch.get_autocast_dtype

    def backward(*args: Any, **kwargs: Any) -> Any:
        # backward() and grad() are torch functions themselves, so the mode is off inside them:
        # hooks and the user's own backward functions need it on.
        with mode:
            return call_op(run_backward, args, kwargs)

    def grouped(*args: Any, **kwargs: Any) -> Any:
        # C++ reads the real device; what is grouped here is moved to the device that it names.
        return {
            (None if where is None else torch.device("cuda", 0), kind): group
            for (where, kind), group in group_tensors(*args, **kwargs).items()
        }

    def wrapper_on_cpu(*args: Any, **kwargs: Any) -> Any:
        # A subclass that names the device of what it wraps; autograd's engine would look for it.
        return make_wrapper(*map(_cpu, args), **{key: _cpu(value) for key, value in kwargs.items()})

    def load_to_cpu(*args: Any, **kwargs: Any) -> Any:
        kwargs["map_location"] = "cpu"
        return load(*args[:1], **kwargs)

    def numpy_on_host(array: Any) -> torch.Tensor:
        tensor = from_numpy(array)
        put(tensor, HOST)
        return tensor

    def capturable_devices(original: Any, *args: Any, **kwargs: Any) -> list[str]:
        # capturable=True refuses parameters of devices that have no graphs; tensors that autograd
        # or C++ hands over may still say that they are the CPU's.
        return [*original(*args, **kwargs), "cpu"]

    # NVTX ranges need no device; builds without CUDA raise on them.
    watch_for_ranges()
    with Patches() as patches:
        replace = patches.replace
        for owner, names in (
            (torch.cuda, cuda_calls(device)),
            (torch.cuda, memory_calls(device)),
            (torch.cuda.memory, memory_calls(device)),
            (torch.cuda.profiler, {"start": lambda: None, "stop": lambda: None}),
            (getattr(torch, "accelerator", None), accelerator_calls(device)),
        ):
            for name, value in names.items():
                replace(owner, name, value)
        replace(torch, "Generator", _generator_class(device))
        replace(torch, "Stream", device.stream_class)
        replace(torch, "Event", device.event_class)
        for owner in (torch, torch.amp, torch.amp.autocast_mode):
            replace(owner, "autocast", _Autocast)
        replace(torch.cuda.amp, "autocast", _CudaAutocast)
        replace(
            torch,
            "is_autocast_enabled",
            lambda kind=None: enabled("cpu" if kind in (None, "cuda") else kind),
        )
        replace(torch, "get_autocast_dtype", lambda kind: dtype("cpu" if kind == "cuda" else kind))
        replace(*GROUP_TENSORS, grouped)
        replace(torch, "load", load_to_cpu)
        replace(torch, "from_numpy", numpy_on_host)
        replace(torch.Tensor, "record_stream", lambda *_: rules.note_record_stream(device))
        replace(*MAKE_WRAPPER_SUBCLASS, staticmethod(wrapper_on_cpu))
        replace(torch.nn.Module, "cuda", lambda self, *_: self.to("cuda"))
        replace(torch, "compile", _compile)
        replace(torch.nn.Module, "compile", lambda *_args, **_kwargs: None)
        replace(torch.backends.cuda, "is_built", lambda: True)
        replace(torch.backends.cudnn, "is_acceptable", lambda _tensor: False)
        replace(*BACKWARD, backward)
        for name, module in list(sys.modules.items()):
            if name.startswith("torch.optim.") and hasattr(module, CAPTURABLE_DEVICES):
                patches.wrap(module, CAPTURABLE_DEVICES, capturable_devices)
        # Saved-tensor hooks run with the mode off in forward and on in backward: checkpointing
        # must not compare the devices that it sees there.
        patches.set_item(
            determinism_checks,
            "default",
            lambda x: {"shape": x.shape, "dtype": x.dtype},
        )
        patches.enter_context(mode)
        yield
