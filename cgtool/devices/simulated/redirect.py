"""The simulated device instead of a GPU during a session.

A tensor on the simulated GPU reports ``cuda:0`` as its device, a host tensor ``cpu``. So code that
reads the device of a tensor, and libraries that decide by it (foreach optimizers, checkpointing),
do what they do on a GPU. Where ops run is decided by ``placement``; here are the functions,
attributes and classes of PyTorch that are replaced by name.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterator
from typing import Any

import torch

from cgtool.devices.simulated import collectives
from cgtool.devices.simulated.cuda_calls import (
    accelerator_bindings,
    cuda_bindings,
    cuda_calls,
    cudart,
    get_properties,
    others,
)
from cgtool.devices.simulated.device_model import COUNT, GPU, INDEX, DeviceModel
from cgtool.devices.simulated.placement import Placement, placed
from cgtool.findings import code
from cgtool.model.failure import CgtoolError, cannot_tell
from cgtool.observe.annotations import install as watch_for_ranges
from cgtool.observe.frames import call_user, here
from cgtool.observe.tensors import (
    DEVICE,
    FROM_DATA,
    HOST,
    is_cuda_device,
    listed_tensors,
    marked_places,
    on_host,
    place_of,
    put,
    put_storage,
    storage_place,
)
from cgtool.torch_compat import control_flow, private
from cgtool.torch_compat.imports import after_import
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.storages import device_of

RNG_NEW_GENERATOR = code("rng-new-generator")

_DEVICE_OF = torch.Tensor.device.__get__
_GET_DEVICE = torch.Tensor.get_device
_CPU = torch.device("cpu")


def _device(tensor: torch.Tensor) -> torch.device:
    device: torch.device = _DEVICE_OF(tensor)
    return GPU if device == _CPU and not on_host(tensor) else device


_SAYS_ITS_DEVICE = {
    "device": property(_device),
    "is_cuda": property(lambda tensor: tensor.device.type == "cuda"),
    "is_cpu": property(lambda tensor: tensor.device.type == "cpu"),
    "get_device": lambda tensor: INDEX if tensor.device.type == "cuda" else _GET_DEVICE(tensor),
}
"""Attributes of ``torch.Tensor``."""


def _on_cpu(value: Any) -> Any:
    return "cpu" if is_cuda_device(value) else value


def _set_autocast(original: Any, *args: Any, **kwargs: Any) -> None:
    """``set_autocast_enabled`` or ``set_autocast_dtype``: autocast of the GPU turns on that of the
    CPU, with the same dtype."""
    was_enabled = torch.is_autocast_enabled("cuda")
    original(*args, **kwargs)
    is_enabled = torch.is_autocast_enabled("cuda")
    if is_enabled or was_enabled:
        dtype = torch.get_autocast_dtype("cuda") if is_enabled else torch.bfloat16
        _SET_DTYPE("cpu", dtype)
        _SET_ENABLED("cpu", is_enabled)


_SET_DTYPE, _SET_ENABLED = torch.set_autocast_dtype, torch.set_autocast_enabled


def _generator_class(device: DeviceModel) -> type[torch.Generator]:
    class Generator(torch.Generator):
        """``torch.Generator("cuda")`` as a generator of the CPU."""

        def graphsafe_get_state(self) -> Generator:
            # On a GPU it shares its state with this one.
            return self

        def graphsafe_set_state(self, state: torch.Generator) -> Generator:
            if state is not self:
                self.set_state(state.get_state())
            return self

        def clone_state(self) -> Generator:
            made = type(self)(self.place)
            made.set_state(self.get_state())
            return made

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
            generator.place = GPU if on_gpu else torch.device("cpu")
            return generator

    return Generator


def _compile(
    device: DeviceModel, model: Any = None, *, disable: bool = False, **_options: Any
) -> Any:
    """``torch.compile`` that compiles nothing: a GPU's backend would decide what it fuses, and the
    ops that it starts from are those that run eagerly."""
    if model is None:
        return functools.partial(_compile, device, disable=disable)
    if disable:
        return model
    if not isinstance(model, torch.nn.Module):
        return _noted(device, model)
    _compile_module(model, device)
    return model


def _compile_module(
    module: torch.nn.Module, device: DeviceModel, *, disable: bool = False, **_options: Any
) -> None:
    if not disable:
        call = functools.partial(private.call_module, module)
        module._compiled_call_impl = _noted(device, call)


def _noted(device: DeviceModel, function: Any) -> Any:
    # As Dynamo does, for the whole process: TorchPatcher (torch/_dynamo/eval_frame.py).
    torch.distributions.Distribution.set_default_validate_args(False)

    @functools.wraps(function)
    def run_eagerly(*args: Any, **kwargs: Any) -> Any:
        device.note_compiled()
        was_compiled, device.is_compiled = device.is_compiled, True
        try:
            return call_user(function, *args, **kwargs)
        finally:
            device.is_compiled = was_compiled

    return run_eagerly


_FROM_TENSORS = (
    "sparse_coo_tensor", "sparse_compressed_tensor", "sparse_csr_tensor", "sparse_csc_tensor",
    "sparse_bsr_tensor", "sparse_bsc_tensor",
)  # fmt: skip
"""Functions in C++ that look at the device of their data, and some at the device that they make a
tensor for, before they call an op."""


def _make_from(
    placement: Placement, reads_lists: bool, original: Any, *args: Any, **kwargs: Any
) -> Any:
    """``reads_lists``: of tensors in a list, the numbers are read."""
    device = _named(kwargs.get("device"))
    if device is None:
        device = private.current_device()
    data = args[0] if args else kwargs.get("data", kwargs.get("obj"))
    is_read = reads_lists and not (args and isinstance(args[0], torch.Tensor))
    on_cpu = is_read or all(map(on_host, listed_tensors(args)))
    if not is_cuda_device(device) and (device is not None or on_cpu):
        return original(*args, **kwargs)
    with placement.inside(DEVICE):
        # Not None: `with torch.device("cuda")` would take its place.
        made = original(*args, **{**kwargs, "device": "cpu"})
        return placement.device.constant(made, data)


def _run_script(placement: Placement, original: Any, *args: Any, **kwargs: Any) -> Any:
    # TorchScript reads the real device of a tensor, in C++.
    with placement.inside(DEVICE):
        return call_user(original, *args, **kwargs)


def _replace_numbers(patches: Patches) -> None:
    """Let numbers name devices (``x.to(0)``), which needs an accelerator that PyTorch was built
    for."""
    try:
        torch.device(0)
    except RuntimeError:
        pass
    else:
        return

    patches.stand_in(torch.Tensor, "cuda", _move)
    patches.wrap(*private.PARSE_TO, _move)
    for function in private.device_constructors():
        name = str(getattr(function, "__name__", ""))
        if getattr(torch, name, None) is function:
            patches.stand_in(torch, name, _make)


def _named(value: Any) -> Any:
    """The device that a number names; other values themselves."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return torch.device("cuda", value) if is_number else value


def _make(original: Any, *args: Any, **kwargs: Any) -> Any:
    if "device" in kwargs:
        kwargs["device"] = _named(kwargs["device"])
    return original(*args, **kwargs)


def _move(original: Any, *args: Any, **kwargs: Any) -> Any:
    return _make(original, *map(_named, args), **kwargs)


def _to(original: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    other = args[0] if args else kwargs.get("other")
    if isinstance(other, torch.Tensor):
        # C++ reads the real device of the other one.
        kwargs.pop("other", None)
        args = (other.device, other.dtype, *args[1:])
    elif all(each is None for each in (*args[:2], kwargs.get("device"), kwargs.get("dtype"))):
        # C++ names the real device of the tensor itself: `x.to(memory_format=...)`.
        if args:
            args = (tensor.device, *args[1:])
        else:
            kwargs["device"] = tensor.device
    return _move(original, tensor, *args, **kwargs)


def _new(
    placement: Placement, original: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    """``x.new(...)``, whose C++ names the real device of the tensor."""
    if on_host(tensor):
        return original(tensor, *args, **kwargs)
    if is_cuda_device(_named(kwargs.get("device"))):
        del kwargs["device"]
    with placement.inside(DEVICE):
        return original(tensor, *args, **kwargs)


def _new_tensor(
    model: DeviceModel, original: Any, tensor: torch.Tensor, /, *args: Any, **kwargs: Any
) -> Any:
    made = _make(original, tensor, *args, **{"device": tensor.device, **kwargs})
    data = args[0] if args else kwargs["data"]
    return made if on_host(made) else model.constant(made, data)


def _read_on_host(original: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    # With a copy to the host, which no op would show.
    return original(tensor if on_host(tensor) else tensor.cpu(), *args, **kwargs)


def _group_tensors(original: Any, *args: Any, **kwargs: Any) -> Any:
    # C++ reads the real device; what is grouped here is moved to the device that it names.
    return {
        (None if where is None else lists[0][0].device, kind): (lists, indices)
        for (where, kind), (lists, indices) in original(*args, **kwargs).items()
    }


def _make_wrapper(original: Any, *args: Any, **kwargs: Any) -> Any:
    # A subclass that names the device of what it wraps; autograd's engine would look for it.
    return original(*map(_on_cpu, args), **{key: _on_cpu(value) for key, value in kwargs.items()})


def _location_tag(original: Any, storage: Any) -> Any:
    return str(GPU) if storage_place(storage) == DEVICE else original(storage)


def _restore_location(original: Any, storage: Any, location: str) -> Any:
    if not is_cuda_device(location):
        return original(storage, location)
    put_storage(storage, DEVICE)
    return storage


def _storage_device(storage: torch.UntypedStorage) -> torch.device:
    return GPU if storage_place(storage) == DEVICE else device_of(storage)


def _new_storage(original: Any, kind: Any, *args: Any, **kwargs: Any) -> Any:
    if not is_cuda_device(_named(kwargs.get("device"))):
        return original(kind, *args, **kwargs)
    if args and not isinstance(args[0], int):
        data = torch.tensor(args[0], dtype=torch.uint8, device=GPU)
    else:
        data = torch.empty(*(args or (0,)), dtype=torch.uint8, device=GPU)
    return data.untyped_storage()


def _in_storage(original: Any, storage: torch.UntypedStorage, index: Any) -> Any:
    part = original(storage, index)
    if isinstance(part, torch.UntypedStorage):
        put_storage(part, storage_place(storage))
    return part


def _apply(original: Any, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """A parameter that moves forgets the autograd node that accumulated its gradients, as when a
    GPU's memory becomes its data (``VariableHooks::set_data``)."""
    places = [
        (each, place_of(each))
        for each in module.parameters(recurse=False)
        if type(each) is torch.nn.Parameter and each.requires_grad
    ]
    result = call_user(original, module, *args, **kwargs)
    for parameter, place in places:
        if place_of(parameter) != place:
            data = parameter.data
            # Data of another type has the same effect.
            other = torch.float32 if data.dtype == torch.float64 else torch.float64
            parameter.data = torch.empty(0, dtype=other)
            parameter.data = data
    return result


def _fake_of_tensor(original: Any, mode: Any, tensor: torch.Tensor, *args: Any, **kw: Any) -> Any:
    is_followed = tensor.requires_grad and torch.is_grad_enabled() and tensor.is_cuda
    if is_followed and not _fake_gpu_tensors_may_require_grad():
        raise cannot_tell(
            "without a GPU, this PyTorch cannot trace a tensor of the GPU that requires grad",
            why="autograd would look for the GPU's stream, and PyTorch would end the process",
            frames=here(),
            fix="call `torch.export` under `with torch.no_grad()`, or before the model moves to "
            "the GPU; or install a PyTorch that is built for CUDA (2.11 or newer)",
        )
    return original(mode, tensor, *args, **kw)


@functools.cache
def _fake_gpu_tensors_may_require_grad() -> bool:
    """Tried in a process of its own, which PyTorch ends if not: a build without CUDA has nothing
    that stands in for the streams of a GPU (``_ensureCUDADeviceGuardSet``)."""
    process = os.fork()
    if process == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            with torch.enable_grad(), private.new_fake_mode():
                torch.ones(1, device="cuda", requires_grad=True).sin()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(process, 0)[1] == 0


class _Exchange:
    """Tensors that leave and come back by DLPack, in a storage that has no mark."""

    def __init__(self, patches: Patches) -> None:
        self.places: dict[int, str] = {}
        """By the id of a capsule that was not read yet."""
        patches.stand_in(torch.Tensor, "__dlpack__", self.export)
        patches.wrap(torch.utils.dlpack, "to_dlpack", self.export)
        for owner in (torch, torch.utils.dlpack):
            patches.wrap(owner, "from_dlpack", self.read)

    def export(self, original: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        capsule = original(tensor, *args, **kwargs)
        self.places[id(capsule)] = place_of(tensor)
        return capsule

    def read(self, original: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
        place = self.places.pop(id(source), HOST)
        result = original(source, *args, **kwargs)
        if isinstance(source, torch.Tensor):
            place = place_of(source)
        if place_of(result) == HOST:
            put(result, place)
        return result


def _thread_ended(original: Any, args: threading.ExceptHookArgs) -> None:
    # The capture reports what it has refused in the thread.
    if not issubclass(args.exc_type, CgtoolError):
        original(args)


@contextlib.contextmanager
def redirected(device: DeviceModel) -> Iterator[None]:
    """``torch.cuda`` reports one simulated GPU while the context is entered."""
    # NVTX ranges need no device; builds without CUDA raise on them.
    watch_for_ranges()
    with Patches() as patches:
        patches.enter_context(control_flow.run_directly())
        replace, wrap, stand_in = patches.replace, patches.wrap, patches.stand_in
        note = device.note_record_stream
        wrap(threading, "excepthook", _thread_ended)
        for binding in private.bindings(
            {"cuda_": cuda_bindings(device), "accelerator_": accelerator_bindings(device)}
            | {"": others(device)}
        ):
            patches.set(*binding)
        patches.set(*private.INITIALIZED, True)
        patches.set(*private.CUDART, cudart)
        patches.set(*private.DEVICE_COUNT, COUNT)
        patches.set(torch.cuda, private.GET_PROPERTIES, get_properties)
        patches.set(*private.ACCELERATOR, lambda: torch.device("cuda"))
        for name, value in cuda_calls(device).items():
            for owner in (torch.cuda, torch.cuda.memory, torch.cuda.streams):
                replace(owner, name, value)
        for name, value in _SAYS_ITS_DEVICE.items():
            replace(torch.Tensor, name, value)
        replace(torch, "Generator", _generator_class(device))
        replace(torch, "Stream", device.stream_class)
        replace(torch, "Event", device.event_class)
        for name in ("set_autocast_enabled", "set_autocast_dtype", "set_autocast_gpu_dtype"):
            wrap(torch, name, _set_autocast)
        replace(torch.Tensor, "record_stream", lambda tensor, *_, **__: note(tensor))
        # Restored, whatever compilation sets.
        patches.set(*private.CHECKS_ARGUMENTS, getattr(*private.CHECKS_ARGUMENTS))
        replace(torch, "compile", functools.partial(_compile, device))
        replace(torch.nn.Module, "compile", functools.partialmethod(_compile_module, device))
        # It imports what builds without CUDA do not have.
        replace(torch.compiler, "cudagraph_mark_step_begin", lambda: None)
        replace(torch.backends.cuda, "is_built", lambda: True)
        replace(torch.backends.cudnn, "is_acceptable", lambda _tensor: False)
        stand_in(torch.Tensor, "to", _to)
        stand_in(torch.Tensor, "new_tensor", functools.partial(_new_tensor, device))
        stand_in(torch.Tensor, "tolist", _read_on_host)
        stand_in(torch.Tensor, "numpy", _read_on_host)
        wrap(*private.GROUP_TENSORS, _group_tensors)
        wrap(*private.MAKE_WRAPPER_SUBCLASS, _make_wrapper)
        wrap(*private.APPLY, _apply)
        wrap(*private.LOCATION_TAG, _location_tag)
        wrap(*private.RESTORE_LOCATION, _restore_location)
        replace(torch.UntypedStorage, "device", property(_storage_device))
        make_storage = functools.partial(_new_storage, torch.UntypedStorage.__new__)
        replace(torch.UntypedStorage, "__new__", staticmethod(make_storage))
        wrap(torch.UntypedStorage, "__getitem__", _in_storage)
        patches.wrap_later(*private.FAKE_OF_TENSOR, _fake_of_tensor)
        _Exchange(patches)
        _replace_numbers(patches)
        patches.callback(
            after_import(
                private.FAKE_TENSORS,
                # Fake tensors need no GPU if they are made as on a machine without one.
                lambda module: patches.replace(module.FakeTensorMode, "avoid_device_init", True),
            )
        )
        patches.enter_context(marked_places())
        placement = patches.enter_context(placed(device))
        collectives.install(patches, placement.inside)
        stand_in(torch.Tensor, "new", functools.partial(_new, placement))
        for point in private.SCRIPT_CALLS:
            wrap(*point, functools.partial(_run_script, placement))
        for name in FROM_DATA:
            stand_in(torch, name, functools.partial(_make_from, placement, True))
        for owner, name in (*((torch, name) for name in _FROM_TENSORS), private.NESTED_TENSOR):
            stand_in(owner, name, functools.partial(_make_from, placement, False))
        yield
