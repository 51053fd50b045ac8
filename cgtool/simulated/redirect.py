"""``torch.cuda`` and ``device="cuda"`` led to the CPU, so that the user's code needs no change."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from cgtool.simulated.streams import Device, Stream, refuse

_READS_HOST = {
    torch.Tensor.tolist: "Tensor.tolist()",
    torch.Tensor.numpy: "Tensor.numpy()",
    torch.Tensor.cpu: "Tensor.cpu()",
    torch.Tensor.item: "Tensor.item()",
    torch.Tensor.pin_memory: "Tensor.pin_memory()",
}


def _is_cuda(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))


class _Redirect(TorchFunctionMode):
    """Every ``cuda`` device in an argument becomes ``cpu``."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        what = _READS_HOST.get(func)
        if what is not None:
            refuse(self.device, what)
        # Only the word: `other.device` is a cpu device here, and means the GPU in the code.
        to_host = func is torch.Tensor.to and "cpu" in (*args[1:2], kwargs.get("device"))
        if to_host:
            refuse(self.device, "Tensor.to('cpu')")
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.tensor and _is_cuda(kwargs.get("device")):
            refuse(self.device, "torch.tensor(..., device='cuda'), a copy from pageable memory,")
        if func is torch.Tensor.record_stream:
            return None
        args = tuple("cpu" if _is_cuda(one) else one for one in args)
        kwargs = {key: "cpu" if _is_cuda(one) else one for key, one in kwargs.items()}
        kwargs.pop("non_blocking", None) if func is torch.Tensor.to else None
        return func(*args, **kwargs)


class _Autocast(torch.autocast):
    """``torch.autocast("cuda", ...)`` as the CPU's, with the same dtype."""

    def __init__(self, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        super().__init__(device_type, dtype, *args, **kwargs)


class _Generator(torch.Generator):
    """``torch.Generator("cuda")`` as one of the CPU's."""

    def __new__(cls, device: Any = "cpu") -> _Generator:
        make: Any = super().__new__
        made: _Generator = make(cls, "cpu" if _is_cuda(device) else device)
        return made


def _compile(model: Any = None, **_options: Any) -> Any:
    """``torch.compile`` as no compilation: what it would fuse, a GPU backend decides, and the
    ops that it would start from are those that run eagerly."""
    return model if model is not None else lambda function: function


def _optimizers() -> list[Any]:
    return [
        module
        for name, module in sys.modules.items()
        if name.startswith("torch.optim.") and hasattr(module, "_get_capturable_supported_devices")
    ]


@contextlib.contextmanager
def redirected(device: Device) -> Iterator[None]:
    """``torch.cuda`` answers as one simulated GPU while the context is entered."""

    def synchronize(*_: Any) -> None:
        refuse(device, "torch.cuda.synchronize()")

    def enter(stream: Stream | None) -> Any:
        return stream if stream is not None else contextlib.nullcontext()

    def set_stream(stream: Stream) -> None:
        device.current = stream

    properties = type(
        "_SimulatedProperties",
        (),
        {"name": "simulated", "major": 9, "minor": 0, "total_memory": 0,
         "multi_processor_count": 0},
    )()  # fmt: skip
    replacements: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda _device: None,
        "get_device_name": lambda *_: "simulated",
        "get_device_capability": lambda *_: (9, 0),
        "get_device_properties": lambda *_: properties,
        "synchronize": synchronize,
        "current_stream": lambda *_: device.current,
        "default_stream": lambda *_: device.default,
        "stream": enter,
        "set_stream": set_stream,
        "Stream": device.stream_class,
        "Event": device.event_class,
        "is_current_stream_capturing": lambda: device.capturing,
        "empty_cache": lambda: None,
        "manual_seed": torch.default_generator.manual_seed,
        "manual_seed_all": torch.default_generator.manual_seed,
        "memory_allocated": lambda *_: 0,
        "max_memory_allocated": lambda *_: 0,
        "reset_peak_memory_stats": lambda *_: None,
    }
    with contextlib.ExitStack() as stack:

        def replace(owner: Any, name: str, value: Any) -> None:
            before = getattr(owner, name)
            setattr(owner, name, value)
            stack.callback(setattr, owner, name, before)

        for name, value in replacements.items():
            replace(torch.cuda, name, value)
        replace(torch, "Generator", _Generator)
        replace(torch, "autocast", _Autocast)
        replace(torch.amp, "autocast", _Autocast)
        replace(torch.nn.Module, "cuda", lambda self, *_: self)
        replace(torch, "compile", _compile)
        replace(torch.nn.Module, "compile", lambda *_args, **_kwargs: None)
        for module in _optimizers():
            # capturable=True refuses parameters of devices that have no graphs; this one has.
            before = module._get_capturable_supported_devices
            replace(
                module,
                "_get_capturable_supported_devices",
                lambda *args, _before=before, **kwargs: [*_before(*args, **kwargs), "cpu"],
            )
        stack.enter_context(_Redirect(device))
        yield
