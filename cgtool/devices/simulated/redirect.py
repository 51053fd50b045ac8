"""``torch.cuda`` and related functions, redirected to the simulated device during a session.

Functions of PyTorch's modules are replaced by name and restored at the end; functions that take
tensors go through ``function_mode``.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from cgtool.detectors.function_rules import note_record_stream
from cgtool.devices.simulated.device_model import DeviceModel, Stream
from cgtool.devices.simulated.function_mode import FunctionMode
from cgtool.devices.simulated.memory_calls import memory_calls
from cgtool.findings.registry import code
from cgtool.model.failure import user_code
from cgtool.observe.annotations import install as watch_for_ranges
from cgtool.observe.frames import call_op, here
from cgtool.observe.placement import HOST, is_cuda_device, put
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import (
    BACKWARD,
    CAPTURABLE_DEVICES,
    GROUP_TENSORS,
    INITIALIZED,
    LAZY_INIT,
    MAKE_WRAPPER_SUBCLASS,
    determinism_checks,
)

EXPLICIT_SYNCHRONIZE = code("explicit-synchronize")
RNG_NEW_GENERATOR = code("rng-new-generator")
RNG_STATE_ACCESS = code("rng-state-access")


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

        def __new__(cls, where: Any = "cpu", **kwargs: Any) -> Generator:
            where = kwargs.get("device", where)
            if is_cuda_device(where) or isinstance(where, int):
                device.refuse(
                    RNG_NEW_GENERATOR,
                    "making a torch.Generator of the GPU",
                    why="its state would have to live on the device: PyTorch refuses to construct "
                    "one during capture",
                    fix="make it once, outside the captured code",
                )
                where = "cpu"
            make: Any = super().__new__
            generator: Generator = make(cls, where)
            return generator

    return Generator


class _Properties:
    """The result of ``torch.cuda.get_device_properties``: an H200, the GPU that is modelled."""

    name = "simulated"
    major, minor = 9, 0
    total_memory = 141 << 30
    multi_processor_count = 132
    max_threads_per_multi_processor = 2048
    warp_size = 32


def _unavailable(what: str) -> type:
    class Unavailable:
        """A class, so that ``torch.cuda.CUDAGraph | None`` can be an annotation."""

        def __init__(self, *_args: Any, **_kwargs: Any) -> None:
            raise user_code(
                f"{what} has no counterpart on the simulated device",
                frames=here(),
                why="cgtool itself captures what the entry point returns",
                fix="return the callable as it is, not captured; or run on a machine with a GPU",
            )

    return Unavailable


def _guard() -> type:
    class Guard(contextlib.nullcontext[None]):
        """``torch.cuda.device(0)``: there is only one device."""

        def __init__(self, _device: Any) -> None:
            super().__init__()

    return Guard


def _cuda(device: DeviceModel) -> dict[str, Any]:
    """Replacements by their names in ``torch.cuda``."""

    def enter(stream: Stream | None) -> Any:
        return stream if stream is not None else contextlib.nullcontext()

    def set_stream(stream: Stream) -> None:
        device.current = stream

    def reseeds(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            device.refuse(
                RNG_STATE_ACCESS,
                what,
                why="the generator belongs to the graph while it is captured: PyTorch refuses to "
                "seed it anew",
                fix="seed before the capture",
            )
            return function(*args)

        return call

    # A new function for each name: Dynamo looks its rules up by function.
    def answers(value: Any) -> Callable[..., Any]:
        return lambda *_args, **_kwargs: value

    def synchronize(*_args: Any) -> None:
        device.refuse(EXPLICIT_SYNCHRONIZE, "torch.cuda.synchronize()")

    def is_capturing() -> bool:
        if device.current_is_capturing:
            device.answer_capturing()
        return device.current_is_capturing

    generator = torch.default_generator

    def get_state(*_: Any) -> torch.Tensor:
        state = torch.get_rng_state()
        put(state, HOST)
        device.random_state("saved", state)
        return state

    def set_state(state: torch.Tensor, *_: Any) -> None:
        torch.set_rng_state(state)
        device.random_state("restored", state)

    return {
        "is_available": answers(True),
        "is_initialized": answers(True),
        "is_bf16_supported": answers(True),
        "init": answers(None),
        LAZY_INIT.name: answers(None),
        "device_count": answers(1),
        "current_device": answers(0),
        "set_device": answers(None),
        "device": _guard(),
        "device_of": _guard(),
        "get_device_name": answers("simulated"),
        "get_device_capability": answers((9, 0)),
        "get_device_properties": answers(_Properties()),
        "synchronize": synchronize,
        "current_stream": lambda *_: device.current,
        "default_stream": answers(device.default),
        "stream": enter,
        "set_stream": set_stream,
        "Stream": device.stream_class,
        "Event": device.event_class,
        "is_current_stream_capturing": is_capturing,
        "manual_seed": reseeds("torch.cuda.manual_seed()", generator.manual_seed),
        "manual_seed_all": reseeds("torch.cuda.manual_seed_all()", generator.manual_seed),
        "seed": reseeds("torch.cuda.seed()", generator.seed),
        "initial_seed": generator.initial_seed,
        INITIALIZED.name: True,
        "get_rng_state": get_state,
        "set_rng_state": set_state,
        "empty_cache": answers(None),
        "reset_peak_memory_stats": answers(None),
        "memory_allocated": answers(0),
        "max_memory_allocated": answers(0),
        "memory_reserved": answers(0),
        "max_memory_reserved": answers(0),
        "mem_get_info": answers((_Properties.total_memory,) * 2),
        "CUDAGraph": _unavailable("torch.cuda.CUDAGraph"),
        "graph": _unavailable("torch.cuda.graph"),
        "make_graphed_callables": _unavailable("torch.cuda.make_graphed_callables"),
    }


def _accelerator(device: DeviceModel) -> dict[str, Any]:
    def set_stream(stream: Stream) -> None:
        device.current = stream

    return {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_accelerator": lambda *_args, **_kwargs: torch.device("cuda"),
        "current_device_index": lambda: 0,
        "current_stream": lambda *_: device.current,
        "set_stream": set_stream,
        "synchronize": lambda *_: device.refuse(
            EXPLICIT_SYNCHRONIZE, "torch.accelerator.synchronize()"
        ),
    }


def _compile(model: Any = None, **_options: Any) -> Any:
    """``torch.compile`` that compiles nothing: a GPU's backend would decide what it fuses, and the
    ops that it starts from are those that run eagerly."""
    return model if model is not None else lambda function: function


def _optimizers() -> list[Any]:
    return [
        module
        for name, module in sys.modules.items()
        if name.startswith("torch.optim.") and hasattr(module, CAPTURABLE_DEVICES)
    ]


@contextlib.contextmanager
def redirected(device: DeviceModel) -> Iterator[None]:
    """``torch.cuda`` answers as one simulated GPU while the context is entered."""
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
        named = {k: "cpu" if is_cuda_device(v) else v for k, v in kwargs.items()}
        return make_wrapper(*("cpu" if is_cuda_device(v) else v for v in args), **named)

    def load_to_cpu(*args: Any, **kwargs: Any) -> Any:
        kwargs["map_location"] = "cpu"
        return load(*args[:1], **kwargs)

    def numpy_on_host(array: Any) -> torch.Tensor:
        tensor = from_numpy(array)
        put(tensor, HOST)
        return tensor

    # NVTX ranges need no device; builds without CUDA raise on them.
    watch_for_ranges()
    with Patches() as patches:
        replace = patches.replace
        for owner, names in (
            (torch.cuda, _cuda(device)),
            (torch.cuda, memory_calls(device)),
            (torch.cuda.memory, memory_calls(device)),
            (torch.cuda.profiler, {"start": lambda: None, "stop": lambda: None}),
            (getattr(torch, "accelerator", None), _accelerator(device)),
        ):
            for name, value in names.items():
                replace(owner, name, value)
        replace(torch, "Generator", _generator_class(device))
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

        def record_stream(_tensor: Any, _stream: Any) -> None:
            note_record_stream(device)

        replace(torch.Tensor, "record_stream", record_stream)
        replace(*MAKE_WRAPPER_SUBCLASS, staticmethod(wrapper_on_cpu))
        replace(torch.nn.Module, "cuda", lambda self, *_: self.to("cuda"))
        replace(torch, "compile", _compile)
        replace(torch.nn.Module, "compile", lambda *_args, **_kwargs: None)
        replace(torch.backends.cuda, "is_built", lambda: True)
        replace(torch.backends.cudnn, "is_acceptable", lambda _tensor: False)
        replace(*BACKWARD, backward)
        for module in _optimizers():
            # capturable=True refuses parameters of devices that have no graphs; tensors that
            # autograd or C++ hands over may still say that they are the CPU's.
            before = getattr(module, CAPTURABLE_DEVICES)
            replace(
                module,
                CAPTURABLE_DEVICES,
                lambda *args, _before=before, **kwargs: [*_before(*args, **kwargs), "cpu"],
            )
        # Saved-tensor hooks run with the mode off in forward and on in backward: checkpointing
        # must not compare the devices that it sees there.
        patches.set_item(
            determinism_checks,
            "default",
            lambda x: {"shape": x.shape, "dtype": x.dtype},
        )
        patches.enter_context(mode)
        yield
