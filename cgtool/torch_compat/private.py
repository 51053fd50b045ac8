"""Every private name of PyTorch that cgtool uses, looked up once, under a public name.

Each name is declared by one call of ``_private``: its path, the part of cgtool that needs it, and
what is lost where a PyTorch does not have it. ``PRIVATE_NAMES`` is the table of these
declarations, with the result of each lookup; ``cgtool doctor`` prints it. A missing name is not an
error until it is used: then ``MissingPrivateName`` says what is missing.

A test fails on a private name anywhere else in cgtool.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Callable, Mapping
from operator import attrgetter, methodcaller
from types import CodeType, ModuleType
from typing import Any, NamedTuple

import torch
from torch.utils import _device, _python_dispatch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

__all__ = ["TorchDispatchMode", "is_traceable_wrapper_subclass", "pytree"]


class PrivateName(NamedTuple):
    """One private name of PyTorch."""

    path: str
    """``torch._C._current_autograd_node``."""
    part: str
    """The part of cgtool that needs it."""
    without: str
    """What is lost where it is missing."""
    present: bool
    gpu: bool
    """Builds of PyTorch without CUDA do not have it."""


class MissingPrivateName(RuntimeError):
    """A private name was used that this PyTorch does not have."""


PRIVATE_NAMES: list[PrivateName] = []
_MISSING = object()


def _look_up(path: str) -> Any:
    """The object at a dotted path that begins with ``torch``, or ``_MISSING``."""
    value: Any = torch
    parts = path.split(".")
    for index, part in enumerate(parts[1:], start=2):
        owner, value = value, getattr(value, part, _MISSING)
        if value is _MISSING and isinstance(owner, ModuleType):
            try:
                value = importlib.import_module(".".join(parts[:index]))
            except ImportError:
                return _MISSING
        if value is _MISSING:
            return _MISSING
    return value


def _private(path: str, part: str, without: str, *, gpu: bool = False, value: Any = None) -> Any:
    """Declare a private name; return ``value``, or else the object at ``path``.

    Where the name is missing, the result is a function that raises ``MissingPrivateName``.
    """
    target = _look_up(path)
    PRIVATE_NAMES.append(PrivateName(path, part, without, target is not _MISSING, gpu))
    if target is not _MISSING:
        return target if value is None else value

    def missing(*_args: Any, **_kwargs: Any) -> Any:
        raise MissingPrivateName(f"PyTorch {torch.__version__} has no `{path}`: {without}")

    return missing


def _field(path: str, part: str, without: str) -> Callable[[Any], Any]:
    """A function that reads an attribute of an instance; ``path`` names it on the class."""
    getter: Callable[[Any], Any] = attrgetter(path.rpartition(".")[2])
    reader: Callable[[Any], Any] = _private(path, part, without, value=getter)
    return reader


class PatchPoint(NamedTuple):
    """An attribute that cgtool replaces while it runs: ``patches.wrap(*point, wrapper)``."""

    owner: Any
    name: str


def _patch_point(path: str, part: str, without: str, *, gpu: bool = False) -> PatchPoint:
    _private(path, part, without, gpu=gpu)
    owner, _, name = path.rpartition(".")
    return PatchPoint(_look_up(owner), name)


# Ops.

_OPS = "op recorder"

for _path in (
    "torch.utils._python_dispatch.TorchDispatchMode",
    "torch.utils._python_dispatch.is_traceable_wrapper_subclass",
    "torch.utils._pytree.tree_leaves",
    "torch.utils._pytree.tree_flatten_with_path",
    "torch.utils._pytree.tree_map_only",
    "torch.utils._pytree.keystr",
):
    _private(_path, _OPS, "cgtool does not start")

PYTREE_MODULE = "torch.utils._pytree"
"""Its name in ``sys.modules``."""

disable_current_modes: Any = _private(
    "torch.utils._python_dispatch._disable_current_modes",
    _OPS,
    "state is copied under the user's modes",
    value=_python_dispatch._disable_current_modes,
)
no_dispatch: Any = _private(
    "torch._C._DisableTorchDispatch", _OPS, "cgtool's own tensor ops are recorded too"
)
no_torch_function: Any = _private(
    "torch._C.DisableTorchFunction", _OPS, "cgtool's own calls are recorded too"
)
next_sequence_number: Callable[[], int] = _private(
    "torch._C._autograd._get_sequence_nr", _OPS, "a backward op does not lead to its forward op"
)
"""The sequence number that autograd gives to the next node of this thread."""
running_autograd_node: Callable[[], Any] = _private(
    "torch._C._current_autograd_node", _OPS, "a backward op does not lead to its forward op"
)
"""The autograd node that runs on this thread, or None."""


sequence_number_of: Callable[[Any], int] = _private(
    "torch._C._functions.AccumulateGrad._sequence_nr",
    _OPS,
    "a backward op does not lead to its forward op",
    value=methodcaller("_sequence_nr"),
)
"""The sequence number of an autograd node."""


def schema_of(func: Any) -> Any:
    """The ``FunctionSchema`` of an ATen op; None for other callables."""
    return getattr(func, "_schema", None)


def packet_of(func: Any) -> Any:
    """``aten.add`` of ``aten.add.Tensor``; other callables themselves."""
    return getattr(func, "_overloadpacket", func)


_private("torch.ops.aten.add.Tensor._schema", _OPS, "ops cannot be named")
_private("torch.ops.aten.add.Tensor._overloadpacket", _OPS, "FLOPs of ops are unknown")

dispatches_to_python: Callable[[torch.Tensor], bool] = _private(
    "torch._C._dispatch_keys",
    _OPS,
    "tensor subclasses cannot be simulated",
    value=lambda tensor: torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python),
)
"""Whether a tensor is of a subclass with ops of its own."""

is_functorch_tensor: Callable[[torch.Tensor], bool] = _private(
    "torch._C._functorch.is_functorch_wrapped_tensor",
    _OPS,
    "it is unknown where tensors in torch.vmap are",
)
unwrapped: Callable[[torch.Tensor], torch.Tensor] = _private(
    "torch._C._functorch.get_unwrapped", _OPS, "it is unknown where tensors in torch.vmap are"
)
"""The tensor inside one of ``torch.vmap`` or ``torch.func.grad``."""

script_builtins: Callable[[], dict[int, str]] = _private(
    "torch.jit._builtins._get_builtin_table", _OPS, "torch.jit.script fails while it is watched"
)
"""By the id of a function: the op that TorchScript compiles it to."""

BACKWARD = _patch_point(
    "torch.autograd._engine_run_backward", _OPS, "backward cannot be simulated or watched"
)


_WATCHED_BY_A_MODE = "ops are recorded by a mode, which disturbs the program"
parse_key: Callable[[str], Any] = _private("torch._C._dispatch_key_parse", _OPS, _WATCHED_BY_A_MODE)
"""The dispatch key of a name."""
dispatch_library: Callable[..., Any] = _private(
    "torch._C._dispatch_library", _OPS, _WATCHED_BY_A_MODE
)
"""``(kind, namespace, key, file, line)``: a library of kernels, which goes when it is dropped."""
has_kernel: Callable[[str, str], bool] = _private(
    "torch._C._dispatch_has_kernel_for_dispatch_key", _OPS, _WATCHED_BY_A_MODE
)
"""``has_kernel("aten::add.Tensor", "CPU")``"""


key_set_of: Callable[[Any], Any] = _private(
    "torch._C.DispatchKeySet", _OPS, "what an op does on a GPU is not rehearsed"
)


def is_made_of_others(name: str) -> bool:
    """Whether an op has a kernel that calls other ops, for autograd to follow."""
    return has_kernel(name, "CompositeImplicitAutograd")


schema: Callable[[str, str], Any] = _private("torch._C._get_schema", _OPS, _WATCHED_BY_A_MODE)
"""Takes the name of an op and that of its overload."""
has_fallback: Callable[[Any], bool] = _private(
    "torch._C._dispatch_has_backend_fallback", _OPS, _WATCHED_BY_A_MODE
)
"""Whether a dispatch key has a kernel for every op."""
op_names: Callable[[], list[str]] = _private(
    "torch._C._dispatch_get_all_op_names", _OPS, _WATCHED_BY_A_MODE
)
_defined_ops: Any = _private(
    "torch.library._defs", _OPS, "ops that a program defines later are not named"
)


def ops_version() -> tuple[int, ...]:
    """Changes when there may be new ops: a module was imported, or Python defined one."""
    return len(sys.modules), len(_defined_ops) if isinstance(_defined_ops, set) else 0


exclude_key: Callable[[Any, bool], None] = _private(
    "torch._C._dispatch_tls_set_dispatch_key_excluded", _OPS, _WATCHED_BY_A_MODE
)
"""Turn a dispatch key off or on again for this thread; exclusion wins over inclusion."""
key_is_excluded: Callable[[Any], bool] = _private(
    "torch._C._dispatch_tls_is_dispatch_key_excluded", _OPS, _WATCHED_BY_A_MODE
)
include_key: Callable[[Any, bool], None] = _private(
    "torch._C._dispatch_tls_set_dispatch_key_included", _OPS, _WATCHED_BY_A_MODE
)
all_keys: Callable[[], Any] = _private("torch._C._dispatch_keyset_full", _OPS, _WATCHED_BY_A_MODE)
keys_after: Callable[[Any], Any] = _private(
    "torch._C._dispatch_keyset_full_after", _OPS, _WATCHED_BY_A_MODE
)
"""The keys that an op comes to after a key."""
ExcludedKeys: Any = _private("torch._C._ExcludeDispatchKeyGuard", _OPS, _WATCHED_BY_A_MODE)
"""``with ExcludedKeys(keyset)``: this thread skips these keys."""
mode_count: Callable[[], int] = _private(
    "torch.utils._python_dispatch._len_torch_dispatch_stack", _OPS, _WATCHED_BY_A_MODE
)
innermost_mode: Callable[[], Any] = _private(
    "torch.utils._python_dispatch._pop_mode_temporarily", _OPS, _WATCHED_BY_A_MODE
)
"""``with innermost_mode() as mode``: it is off meanwhile."""
higher_order_ops: Mapping[str, Any] = _private(
    "torch._ops._higher_order_ops", _OPS, _WATCHED_BY_A_MODE
)
"""``torch.cond`` and its like, by name."""
force_keys: Any = _private("torch._C._ForceDispatchKeyGuard", _OPS, _WATCHED_BY_A_MODE)
"""While entered, this thread includes and excludes the keys of two sets, and no others."""
included_keys: Callable[[], Any] = _private(
    "torch._C._dispatch_tls_local_include_set", _OPS, _WATCHED_BY_A_MODE
)
excluded_keys: Callable[[], Any] = _private(
    "torch._C._dispatch_tls_local_exclude_set", _OPS, _WATCHED_BY_A_MODE
)

below_autograd: Any = _private(
    "torch._C._AutoDispatchBelowAutograd", _OPS, "the simulated device cannot replay"
)
"""``with below_autograd()``: ops run as the kernels that autograd calls, whatever the grad mode."""


def redispatcher(op: Any) -> Callable[..., Any]:
    """``redispatch(keyset, *args, **kwargs)`` of an op."""
    function: Callable[..., Any] = op._handle.redispatch_boxed
    return function


def saved_factor(product: torch.Tensor) -> torch.Tensor:
    """The second factor that a product keeps for its backward."""
    node: Any = product.grad_fn
    factor: torch.Tensor = node._saved_other
    return factor


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a FakeTensor; imports nothing."""
    module = sys.modules.get("torch._subclasses.fake_tensor")
    return module is not None and isinstance(tensor, module.FakeTensor)


def dynamo_is_loaded() -> bool:
    """Whether ``torch.compile`` was used; imports nothing."""
    return "torch._dynamo" in sys.modules


def has_compiled() -> bool:
    """Whether ``torch.compile`` has compiled anything. Optimizers load Dynamo and compile
    nothing."""
    counters: Any = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return bool(counters.get("frames"))


def load_dynamo() -> None:
    """Import what ``torch.compile`` needs: a second and more."""
    importlib.import_module("torch._dynamo")


def compile_context() -> Any:
    """The class whose objects wrap what ``torch.compile`` compiles; importing it takes a second."""
    return importlib.import_module("torch._dynamo.eval_frame")._TorchDynamoContext


def stand_in_for_compiled(function: Callable[..., Any], compiled: Callable[..., Any]) -> None:
    """Let ``function`` be called in place of what ``torch.compile`` returned: Dynamo unwraps it."""
    functools.update_wrapper(function, compiled)
    function._torchdynamo_wrapper_id = id(function)  # type: ignore[attr-defined]


def compilation_runs() -> PatchPoint:
    """The context that is entered for each compilation, on the thread that compiles."""
    callbacks = importlib.import_module("torch._dynamo.callback")
    return PatchPoint(callbacks.CompilationCallbackHandler, "install_callbacks")


def pins_memory(thread: threading.Thread) -> bool:
    """Whether a thread is the one of a DataLoader that pins memory."""
    target = repr(getattr(thread, "_target", ""))
    return "pin_memory" in thread.name or "_pin_memory_loop" in target


# Storages.

_STORAGES = "storages and lifetimes"

storage_key: Callable[[Any], int] = _field(
    "torch.UntypedStorage._cdata", _STORAGES, "tensors that share memory are not recognized"
)
"""A number that is the storage's own while it lives."""
storage_address: Callable[[torch.Tensor], int] = _private(
    "torch._C._storage_address", _STORAGES, "the simulated device fails"
)
"""The ``storage_key`` of a tensor's storage, without an object for the storage."""
direct_storage: Callable[[torch.UntypedStorage, int], Any] = _private(
    "torch.UntypedStorage._set_cdata", _STORAGES, "tensors that share memory are not recognized"
)
"""Make an object that of another storage, by its ``storage_key``."""
weak_storage: Callable[[torch.UntypedStorage], int] = _private(
    "torch.UntypedStorage._weak_ref", _STORAGES, "tensors that share memory are not recognized"
)
weak_storage_expired: Callable[[int], bool] = _private(
    "torch.UntypedStorage._expired", _STORAGES, "freed storages are not noticed"
)
free_weak_storage: Callable[[int], None] = _private(
    "torch.UntypedStorage._free_weak_ref", _STORAGES, "weak references to storages are not freed"
)
storage_use_count: Callable[[int], int] = _private(
    "torch._C._storage_Use_Count", _STORAGES, "the simulated device frees no memory of a graph"
)
"""How many tensors and storages own the memory behind a ``storage_key``."""
generator_key: Callable[[Any], int] = _field(
    "torch.Generator._cdata", _STORAGES, "generators of a graph cannot be distinguished"
)
version_of_tensor: Callable[[torch.Tensor], int] = _field(
    "torch.Tensor._version", _STORAGES, "writes to large host tensors are not noticed"
)
sparse_indices: Callable[[torch.Tensor], torch.Tensor] = _private(
    "torch.Tensor._indices", _STORAGES, "the memory of sparse tensors is unknown"
)
sparse_values: Callable[[torch.Tensor], torch.Tensor] = _private(
    "torch.Tensor._values", _STORAGES, "the memory of sparse tensors is unknown"
)


# Modules.

_MODULES = "modules"

parameters_of: Callable[[Any], dict[str, Any]] = attrgetter("_parameters")
buffers_of: Callable[[Any], dict[str, Any]] = attrgetter("_buffers")
children_of: Callable[[Any], dict[str, Any]] = attrgetter("_modules")
MODULE_TABLES = ("_parameters", "_buffers", "_modules")
"""Attributes of a module that hold what ``__getattr__`` finds."""
FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
"""Attributes of a tensor: its hooks by number, or None."""
COMPILED_MODULE = "_orig_mod"
"""Attribute of what ``torch.compile`` makes of a module: the module itself."""
APPLY = _patch_point("torch.nn.Module._apply", _MODULES, "moved modules are not noticed")
call_module: Callable[..., Any] = _private(
    "torch.nn.Module._call_impl", _MODULES, "the module that calls is unknown"
)
"""Runs a module's hooks and ``forward``."""
CALL_MODULE_CODE: CodeType = call_module.__code__
Dropout: Any = _private(
    "torch.nn.modules.dropout._DropoutNd", _MODULES, "train() and eval() are not compared"
)
"""The base class of all dropout modules."""


# The simulated device.

_SIMULATED = "simulated device"
_UNSIMULATED = "code for a GPU cannot run on the simulated device"

LAZY_INIT = _patch_point("torch.cuda._lazy_init", _SIMULATED, _UNSIMULATED)
INITIALIZED = _patch_point("torch.cuda._initialized", _SIMULATED, _UNSIMULATED)
check: Callable[[bool, Callable[[], str]], None] = _private(
    "torch._check", _SIMULATED, "ops with tensors on two devices do not fail there"
)
SLEEP = _patch_point("torch.cuda._sleep", _SIMULATED, "torch.cuda._sleep() fails there")
SNAPSHOT = _patch_point("torch.cuda.memory._snapshot", _SIMULATED, "memory snapshots fail there")
DUMP_SNAPSHOT = _patch_point(
    "torch.cuda.memory._dump_snapshot", _SIMULATED, "memory snapshots fail there"
)
RECORD_MEMORY_HISTORY = _patch_point(
    "torch.cuda.memory._record_memory_history", _SIMULATED, "memory snapshots fail there"
)
HOST_EMPTY_CACHE = _patch_point(
    "torch._C._host_emptyCache", _SIMULATED, "pinned memory cannot be emptied", gpu=True
)
GROUP_TENSORS = _patch_point(
    "torch._C._group_tensors_by_device_and_dtype", _SIMULATED, "foreach optimizers fail there"
)
MAKE_WRAPPER_SUBCLASS = _patch_point(
    "torch.Tensor._make_wrapper_subclass", _SIMULATED, "wrapper subclasses fail there"
)
SCRIPT_CALLS = tuple(
    _patch_point(f"torch._C.{name}.__call__", _SIMULATED, "TorchScript creates tensors on the host")
    for name in ("ScriptFunction", "ScriptMethod")
)
PARSE_TO = _patch_point("torch._C._nn._parse_to", _SIMULATED, "Module.to(0) fails there")
NESTED_TENSOR = _patch_point(
    "torch._C._nested.nested_tensor", _SIMULATED, "nested tensors are on the host there"
)
LOCATION_TAG = _patch_point(
    "torch.serialization.location_tag", _SIMULATED, "saved tensors name the CPU"
)
RESTORE_LOCATION = _patch_point(
    "torch.serialization.default_restore_location", _SIMULATED, "torch.load fails there"
)
CLONE_STORAGE = _patch_point(
    "torch.UntypedStorage.clone", _SIMULATED, "copies of modules are on the host there"
)
device_constructors: Callable[[], set[Any]] = _private(
    "torch.utils._device._device_constructors",
    _SIMULATED,
    "torch.device as a context fails there",
    value=_device._device_constructors,
)
"""Functions that make a tensor on the device of the context."""
_private("torch.utils._device.CURRENT_DEVICE", _SIMULATED, "torch.device as a context fails there")


def current_device() -> torch.device | None:
    """The device of the innermost ``with torch.device(...)``, or the default device; None for
    none."""
    device: torch.device | None = _device.CURRENT_DEVICE
    return device


# Capture on a GPU.

_GPU = "captures on a GPU"

visible_gpus: Callable[[], int] = _private(
    "torch.cuda._device_count_nvml",
    "cgtool run",
    "cgtool run does not know whether there is a GPU",
)
"""How many GPUs the process may use, by NVML: CUDA is not initialised, so the process may fork. -1
if NVML does not answer."""
current_raw_stream: Callable[[int], int] = _private(
    "torch._C._cuda_getCurrentRawStream", _GPU, "the stream of a node is unknown", gpu=True
)
"""Handle of the current stream of a device."""
CUDAGraphBase: Any = _private(
    "torch._C._CUDAGraph", _GPU, "templates of a script's graphs cannot be read", gpu=True
)
"""The class of C++ behind ``torch.cuda.CUDAGraph``, whose methods cgtool replaces."""
record_memory_history: Callable[..., None] = _private(
    "torch.cuda.memory._record_memory_history", _GPU, "pools have no history"
)
memory_snapshot: Callable[[], Mapping[str, Any]] = _private(
    "torch.cuda.memory._snapshot", _GPU, "pools have no history"
)
clear_cublas_workspaces: Callable[[], None] = _private(
    "torch._C._cuda_clearCublasWorkspaces", _GPU, "cuBLAS workspaces are not named", gpu=True
)
"""Raises MissingPrivateName where it is missing."""
spin: Callable[[int], None] = _private(
    "torch.cuda._sleep", _GPU, "a replay is timed with its own launch"
)
"""Keep the current stream busy for a number of clock cycles."""
DeviceType: Any = _private(
    "torch._C._autograd.DeviceType", _GPU, "PyTorch's profiler gives no node times"
)
is_profiler_enabled: Callable[[], bool] = _private(
    "torch.autograd.profiler._is_profiler_enabled",
    _GPU,
    "a profiler around a replay is not noticed",
    value=lambda: bool(torch.autograd.profiler._is_profiler_enabled),
)
CAPTURE_HEALTH_CHECKS = (
    "_cuda_graph_capture_health_check",
    "_accelerator_graph_capture_health_check",
)
"""Methods of ``torch.optim.Optimizer``; a PyTorch has one of them or both."""


# Named ranges.

_RANGES = "named ranges"

NVTX = _patch_point("torch.cuda.nvtx._nvtx", _RANGES, "NVTX ranges are not seen")
MARK_KERNELS_MODULES = ("torch.cuda.graph_annotations", "torch.cuda._graph_annotations")
"""Where the releases keep ``mark_kernels``."""
