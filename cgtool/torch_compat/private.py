"""Every private name of PyTorch that cgtool uses, looked up once, under a public name.

Each name is declared by one call of ``_private``: the part of cgtool that needs it, its path, and
what is lost where a PyTorch does not have it. ``PRIVATE_NAMES`` is the table of these
declarations, with the result of each lookup; ``cgtool doctor`` prints it. A missing name is not an
error until it is used: then ``MissingPrivateName`` says what is missing.

A test fails on a private name anywhere else in cgtool.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import attrgetter, methodcaller
from types import CodeType, ModuleType
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

__all__ = ["TorchDispatchMode", "is_traceable_wrapper_subclass", "pytree"]


class PrivateName(NamedTuple):
    path: str
    """``torch._C._current_autograd_node``."""
    part: str
    """The part of cgtool that needs it."""
    without: str
    """The loss where it is missing, for ``cgtool doctor``."""
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


def is_present(path: str) -> bool:
    """Whether there is such a name, or such a field of a dataclass. Imports what it lies in."""
    owner, _, name = path.rpartition(".")
    fields = getattr(_look_up(owner), "__dataclass_fields__", ())
    return name in fields or _look_up(path) is not _MISSING


def _private(part: str, path: str, without: str, *, gpu: bool = False, value: Any = None) -> Any:
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


class PatchPoint(NamedTuple):
    """An attribute that cgtool replaces while it runs: ``patches.wrap(*point, wrapper)``."""

    owner: Any
    name: str


class LatePoint(NamedTuple):
    """A private name in a module that not every program imports:
    ``patches.wrap_later(*point, wrapper)``."""

    module: str
    path: str
    """In the module: ``CUDAGraphNode.check_invariants``."""


def _patch_point(part: str, path: str, without: str, *, gpu: bool = False) -> PatchPoint:
    _private(part, path, without, gpu=gpu)
    owner, _, name = path.rpartition(".")
    return PatchPoint(_look_up(owner), name)


# Ops.

_op = partial(_private, "op recorder")

for _path in (
    "torch.utils._python_dispatch.TorchDispatchMode",
    "torch.utils._python_dispatch.is_traceable_wrapper_subclass",
    "torch.utils._pytree.tree_leaves",
    "torch.utils._pytree.tree_flatten_with_path",
    "torch.utils._pytree.tree_map_only",
    "torch.utils._pytree.keystr",
):
    _op(_path, "cgtool does not start")

PYTREE_MODULE = "torch.utils._pytree"
"""Its name in ``sys.modules``."""

disable_current_modes: Any = _op(
    "torch.utils._python_dispatch._disable_current_modes", "state is copied under the user's modes"
)
no_dispatch: Any = _op("torch._C._DisableTorchDispatch", "cgtool's own tensor ops are recorded too")
no_torch_function: Any = _op("torch._C.DisableTorchFunction", "cgtool's own calls are recorded too")
_backward = partial(_op, without="a backward op does not lead to its forward op")
next_sequence_number: Callable[[], int] = _backward("torch._C._autograd._get_sequence_nr")
"""The sequence number that autograd gives to the next node of this thread."""
running_autograd_node: Callable[[], Any] = _backward("torch._C._current_autograd_node")
"""The autograd node that runs on this thread, or None."""
current_graph_task: Callable[[], int] = _op(
    "torch._C._current_graph_task_id", "the ops of a backward have no line"
)
"""The number of the backward that runs on this thread; -1 for none."""
sequence_number_of: Callable[[Any], int] = _backward(
    "torch._C._functions.AccumulateGrad._sequence_nr", value=methodcaller("_sequence_nr")
)
"""The sequence number of an autograd node."""


def _stage(scaler: Any, optimizer: torch.optim.Optimizer) -> str | None:
    if not scaler.is_enabled():
        return None
    state = scaler._per_optimizer_states.get(id(optimizer))
    return "READY" if state is None else str(state["stage"].name)


base_of: Callable[[torch.Tensor], torch.Tensor | None] = _private(
    "check",
    "torch.Tensor._base",
    "code whose arguments were slices cannot run again",
    value=attrgetter("_base"),
)
"""What a tensor is a view of."""
scaler_stage: Callable[[Any, torch.optim.Optimizer], str | None] = _private(
    "check", "torch.amp.grad_scaler.OptState", "gradients are unscaled twice, unseen", value=_stage
)
"""The stage that a ``GradScaler`` has noted of an optimizer since its last ``update()``: ``READY``,
``UNSCALED``, ``STEPPED``; None if it is disabled."""


def saved_by(node: Any) -> list[torch.Tensor]:
    """The tensors that a running autograd node has saved, as far as it has names for them."""
    names = [name for name in dir(node) if name.startswith("_saved_")]
    values = [_saved(node, name) for name in (*names, "saved_tensors")]
    parts = [part for each in values for part in (each if isinstance(each, tuple) else (each,))]
    return [part for part in parts if isinstance(part, torch.Tensor)]


def _saved(node: Any, name: str) -> Any:
    try:
        return getattr(node, name, None)
    except RuntimeError:  # freed, or changed in place
        return None


def schema_of(func: Any) -> Any:
    """The ``FunctionSchema`` of an ATen op; None for other callables."""
    return getattr(func, "_schema", None)


def packet_of(func: Any) -> Any:
    """``aten.add`` of ``aten.add.Tensor``; other callables themselves."""
    return getattr(func, "_overloadpacket", func)


_op("torch.ops.aten.add.Tensor._schema", "ops cannot be named")
_op("torch.ops.aten.add.Tensor._overloadpacket", "FLOPs of ops are unknown")

dispatches_to_python: Callable[[torch.Tensor], bool] = _op(
    "torch._C._dispatch_keys",
    "tensor subclasses cannot be simulated",
    value=lambda tensor: torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python),
)
"""Whether a tensor is of a subclass with ops of its own."""

_vmap = partial(_op, without="it is unknown where tensors in torch.vmap are")
is_functorch_tensor: Callable[[torch.Tensor], bool] = _vmap(
    "torch._C._functorch.is_functorch_wrapped_tensor"
)
unwrapped: Callable[[torch.Tensor], torch.Tensor] = _vmap("torch._C._functorch.get_unwrapped")
"""The tensor inside one of ``torch.vmap`` or ``torch.func.grad``."""

script_builtins: Callable[[], dict[int, str]] = _op(
    "torch.jit._builtins._get_builtin_table", "torch.jit.script fails while it is watched"
)
"""By the id of a function: the op that TorchScript compiles it to."""

BACKWARD = _patch_point(
    "op recorder", "torch.autograd._engine_run_backward", "backward cannot be simulated or watched"
)


_key = partial(_op, without="ops are recorded by a mode, which disturbs the program")
parse_key: Callable[[str], Any] = _key("torch._C._dispatch_key_parse")
"""The dispatch key of a name."""
dispatch_library: Callable[..., Any] = _key("torch._C._dispatch_library")
"""``(kind, namespace, key, file, line)``: a library of kernels, which goes when it is dropped."""
has_kernel: Callable[[str, str], bool] = _key("torch._C._dispatch_has_kernel_for_dispatch_key")
"""``has_kernel("aten::add.Tensor", "CPU")``"""


key_set_of: Callable[[Any], Any] = _op(
    "torch._C.DispatchKeySet", "what an op does on a GPU is not rehearsed"
)


def is_made_of_others(name: str) -> bool:
    """Whether an op has a kernel that calls other ops, for autograd to follow."""
    return has_kernel(name, "CompositeImplicitAutograd")


schema: Callable[[str, str], Any] = _key("torch._C._get_schema")
"""Takes the name of an op and that of its overload."""
has_fallback: Callable[[Any], bool] = _key("torch._C._dispatch_has_backend_fallback")
"""Whether a dispatch key has a kernel for every op."""
op_names: Callable[[], list[str]] = _key("torch._C._dispatch_get_all_op_names")
_defined_ops: Any = _op("torch.library._defs", "ops that a program defines later are not named")


def ops_version() -> tuple[int, ...]:
    """Changes when there may be new ops: a module was imported, or Python defined one."""
    return len(sys.modules), len(_defined_ops) if isinstance(_defined_ops, set) else 0


exclude_key: Callable[[Any, bool], None] = _key("torch._C._dispatch_tls_set_dispatch_key_excluded")
"""Turn a dispatch key off or on again for this thread; exclusion wins over inclusion."""
key_is_excluded: Callable[[Any], bool] = _key("torch._C._dispatch_tls_is_dispatch_key_excluded")
include_key: Callable[[Any, bool], None] = _key("torch._C._dispatch_tls_set_dispatch_key_included")
all_keys: Callable[[], Any] = _key("torch._C._dispatch_keyset_full")
keys_after: Callable[[Any], Any] = _key("torch._C._dispatch_keyset_full_after")
"""The keys that an op comes to after a key."""
ExcludedKeys: Any = _key("torch._C._ExcludeDispatchKeyGuard")
"""``with ExcludedKeys(keyset)``: this thread skips these keys."""
mode_count: Callable[[], int] = _key("torch.utils._python_dispatch._len_torch_dispatch_stack")
innermost_mode: Callable[[], Any] = _key("torch.utils._python_dispatch._pop_mode_temporarily")
"""``with innermost_mode() as mode``: it is off meanwhile."""
higher_order_ops: Mapping[str, Any] = _key("torch._ops._higher_order_ops")
"""``torch.cond`` and its like, by name."""
force_keys: Any = _key("torch._C._ForceDispatchKeyGuard")
"""While entered, this thread includes and excludes the keys of two sets, and no others."""
included_keys: Callable[[], Any] = _key("torch._C._dispatch_tls_local_include_set")
excluded_keys: Callable[[], Any] = _key("torch._C._dispatch_tls_local_exclude_set")

kernels_for_a_while: Callable[..., contextlib.AbstractContextManager[Any]] = _op(
    "torch.library._scoped_library", "the simulated device cannot run"
)
"""``with kernels_for_a_while("aten", "IMPL") as library``: its kernels are gone afterwards."""
below_autograd: Any = _op(
    "torch._C._AutoDispatchBelowAutograd", "the simulated device cannot replay"
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


FAKE_TENSORS = "torch._subclasses.fake_tensor"
"""The module of the mode that traces code without running it, for ``torch.export`` and its like."""
ENTER_FAKE_MODE = LatePoint(FAKE_TENSORS, "FakeTensorMode.__enter__")
FAKE_OF_TENSOR = LatePoint(FAKE_TENSORS, "FakeTensorMode.from_tensor")
runs_meta_kernels: Callable[[], bool] = _op(
    "torch._C._meta_in_tls_dispatch_include", "code that is traced with fake tensors fails"
)
"""Whether the ops of this thread are those of a fake one, whatever their tensors are."""
is_traced: Callable[[], bool] = _op(
    "torch._C._get_dispatch_mode",
    "code that is traced with fake tensors fails",
    value=lambda: any(
        torch._C._get_dispatch_mode(key) is not None
        for key in (torch._C._TorchDispatchModeKey.FAKE, torch._C._TorchDispatchModeKey.PROXY)
    ),
)
"""Whether the ops of this thread go to a FakeTensorMode, or are recorded by ``make_fx``."""


def new_fake_mode() -> Any:
    return importlib.import_module(FAKE_TENSORS).FakeTensorMode()


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a FakeTensor; imports nothing."""
    module = sys.modules.get(FAKE_TENSORS)
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


DYNAMO = "torch._dynamo"
TRACE_RULES = "torch._dynamo.trace_rules"
"""The module that knows what Dynamo compiles."""


def compile_none_of_our_frames(trace_rules: ModuleType) -> None:
    """Dynamo compiles nothing of cgtool, where compiled code calls it after a graph break."""
    trace_rules.add("cgtool")


EVAL_FRAME = "torch._dynamo.eval_frame"
"""The module that calls compiled functions."""


def call_points(eval_frame: ModuleType) -> tuple[PatchPoint, PatchPoint] | None:
    """Two functions that are called around each compiled function, in the frame that calls it. The
    first comes before the keys of the thread are noted, and again after the function; the second
    comes last, when the keys are restored, too. None without both."""
    names = "set_skip_guard_eval_unsafe", "_maybe_set_eval_frame"
    if not all(hasattr(eval_frame, name) for name in names):
        return None
    return PatchPoint(eval_frame, names[0]), PatchPoint(eval_frame, names[1])


def pins_memory(thread: threading.Thread) -> bool:
    """Whether a thread is the one of a DataLoader that pins memory."""
    target = repr(getattr(thread, "_target", ""))
    return "pin_memory" in thread.name or "_pin_memory_loop" in target


# Storages.

_storage = partial(_private, "storages and lifetimes")

storage_key: Callable[[Any], int] = _storage(
    "torch.UntypedStorage._cdata",
    "tensors that share memory are not recognized",
    value=attrgetter("_cdata"),
)
"""A number that is the storage's own while it lives."""
storage_address: Callable[[torch.Tensor], int] = _storage(
    "torch._C._storage_address", "the simulated device fails"
)
"""The ``storage_key`` of a tensor's storage, without an object for the storage."""
direct_storage: Callable[[torch.UntypedStorage, int], Any] = _storage(
    "torch.UntypedStorage._set_cdata", "tensors that share memory are not recognized"
)
"""Make an object that of another storage, by its ``storage_key``."""
weak_storage: Callable[[torch.UntypedStorage], int] = _storage(
    "torch.UntypedStorage._weak_ref", "tensors that share memory are not recognized"
)
storage_of_weak: Callable[[int], torch.UntypedStorage] = _storage(
    "torch.UntypedStorage._new_with_weak_ptr", "replays with other padding are not tried"
)
"""A new object of a living storage, by what ``weak_storage`` returned."""
weak_storage_expired: Callable[[int], bool] = _storage(
    "torch.UntypedStorage._expired", "freed storages are not noticed"
)
free_weak_storage: Callable[[int], None] = _storage(
    "torch.UntypedStorage._free_weak_ref", "weak references to storages are not freed"
)
storage_use_count: Callable[[int], int] = _storage(
    "torch._C._storage_Use_Count", "the simulated device frees no memory of a graph"
)
"""How many tensors and storages own the memory behind a ``storage_key``."""
generator_key: Callable[[Any], int] = _storage(
    "torch.Generator._cdata",
    "generators of a graph cannot be distinguished",
    value=attrgetter("_cdata"),
)
sparse_indices: Callable[[torch.Tensor], torch.Tensor] = _storage(
    "torch.Tensor._indices", "the memory of sparse tensors is unknown"
)
sparse_values: Callable[[torch.Tensor], torch.Tensor] = _storage(
    "torch.Tensor._values", "the memory of sparse tensors is unknown"
)


# Modules.

storage_at: Callable[[int, torch.device, int], Any] = _storage(
    "torch._C._construct_storage_from_data_pointer", "`debug` shows no values on a GPU", gpu=True
)
"""A storage at an address, of so many bytes, which does not own them."""

_module = partial(_private, "modules")


def _table_of(name: str) -> Callable[[Any], dict[str, Any]]:
    """By the attribute of a module that holds it. Where the module is of TorchScript, a copy of
    what its C++ object holds."""
    read = attrgetter(name)

    def table(module: Any) -> dict[str, Any]:
        held = read(module)
        return held if isinstance(held, dict) else dict(held.items())

    return table


parameters_of = _table_of("_parameters")
buffers_of = _table_of("_buffers")
children_of = _table_of("_modules")
MODULE_TENSORS = ("_parameters", "_buffers")
MODULE_TABLES = (*MODULE_TENSORS, "_modules")
"""Attributes of a module that hold what ``__getattr__`` finds."""
TABLES_OF = parameters_of, buffers_of, children_of
"""Functions that return these tables of a module."""
FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
"""Attributes of a tensor: its hooks by number, or None."""
VERSION = "_version"
"""An attribute of a tensor: how often it was written in place."""
_GLOBAL_HOOKS: tuple[dict[int, Any], ...] = tuple(
    _module(f"torch.nn.modules.module.{name}", "compiled code is recompiled")
    for name in (
        "_global_forward_pre_hooks", "_global_forward_hooks", "_global_forward_hooks_always_called"
    )
)  # fmt: skip


@contextlib.contextmanager
def without_our_module_hooks() -> Iterator[None]:
    """While entered, global module hooks whose functions are of cgtool are not registered."""
    ours = [
        number
        for table in _GLOBAL_HOOKS[:2]
        for number, hook in table.items()
        if getattr(hook, "__module__", "").partition(".")[0] == "cgtool"
    ]
    removed = [
        (table, number, table.pop(number))
        for table in _GLOBAL_HOOKS
        for number in ours
        if number in table
    ]
    try:
        yield
    finally:
        for table, number, hook in removed:
            table[number] = hook


COMPILED_MODULE = "_orig_mod"
"""Attribute of what ``torch.compile`` makes of a module: the module itself."""
APPLY = _patch_point("modules", "torch.nn.Module._apply", "moved modules are not noticed")
SWAP = _patch_point("modules", "torch._C._swap_tensor_impl", "swapped tensors are not noticed")
call_module: Callable[..., Any] = _module(
    "torch.nn.Module._call_impl", "the module that calls is unknown"
)
"""Runs a module's hooks and ``forward``."""
CALL_MODULE_CODE: CodeType = call_module.__code__
Dropout: Any = _module("torch.nn.modules.dropout._DropoutNd", "train() and eval() are not compared")
"""The base class of all dropout modules."""
Norm: Any = _module("torch.nn.modules.batchnorm._NormBase", "train() and eval() are not compared")
"""The base class of the modules that may keep running statistics."""


# The simulated device.

_simulated = partial(_patch_point, "simulated device")
_UNSIMULATED = "code for a GPU cannot run on the simulated device"

INITIALIZED = _simulated("torch.cuda._initialized", _UNSIMULATED)
CUDART = _simulated("torch.cuda._cudart", "the runtime library of CUDA cannot be called there")
DEVICE_COUNT = _simulated("torch.cuda._cached_device_count", _UNSIMULATED)
GET_PROPERTIES = "_get_device_properties"
"""In ``torch.cuda`` when a GPU has been initialized."""
_IMPORTED_AS = {
    "_cuda_exchangeDevice": "_exchange_device",
    "_cuda_maybeExchangeDevice": "_maybe_exchange_device",
}
ACCELERATOR = _simulated("torch._C._get_accelerator", "torch.get_device_module() fails there")
CHECKS_ARGUMENTS = _simulated(
    "torch.distributions.Distribution._validate_args",
    "distributions stay unchecked after a program that compiles",
)


def bindings(functions: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[Any, str, Any]]:
    """Owner, name and function: in place of PyTorch's bindings in C++, which builds without CUDA do
    not have, and of those that its modules have imported. ``functions``: by the module of PyTorch
    and by what the name begins with."""
    for prefix, by_name in functions.items():
        for short_name, function in by_name.items():
            name = f"_{prefix}{short_name}"
            yield torch._C, name, function
            for module in (torch.cuda, torch.cuda.memory, torch.cuda.graphs):
                known = _IMPORTED_AS.get(name, name)
                if hasattr(module, known):
                    yield module, known, function


check: Callable[[bool, Callable[[], str]], None] = _private(
    "simulated device", "torch._check", "ops with tensors on two devices do not fail there"
)
CAPTURING_QUERIES = tuple(
    _simulated(f"{owner}._cuda_isCurrentStreamCapturing", _UNSIMULATED)
    for owner in ("torch.cuda.graphs", "torch._C")
)
"""The functions behind ``torch.cuda.is_current_stream_capturing``, by whatever name the code knows
it."""
GROUP_TENSORS = _simulated(
    "torch._C._group_tensors_by_device_and_dtype", "foreach optimizers fail there"
)
MAKE_WRAPPER_SUBCLASS = _simulated(
    "torch.Tensor._make_wrapper_subclass", "wrapper subclasses fail there"
)
SCRIPT_CALLS = tuple(
    _simulated(f"torch._C.{name}.__call__", "TorchScript creates tensors on the host")
    for name in ("ScriptFunction", "ScriptMethod")
)
PARSE_TO = _simulated("torch._C._nn._parse_to", "Module.to(0) fails there")
NESTED_TENSOR = _simulated("torch._C._nested.nested_tensor", "nested tensors are on the host there")
LOCATION_TAG = _simulated("torch.serialization.location_tag", "saved tensors name the CPU")
RESTORE_LOCATION = _simulated(
    "torch.serialization.default_restore_location", "torch.load fails there"
)
_context = partial(_private, "simulated device", without="torch.device as a context fails there")
device_constructors: Callable[[], set[Any]] = _context("torch.utils._device._device_constructors")
"""Functions that make a tensor on the device of the context."""
_function_modes: Callable[[], list[Any]] = _context(
    "torch.overrides._get_current_function_mode_stack"
)
_DeviceContext: Any = _context("torch.utils._device.DeviceContext")


def current_device() -> torch.device | None:
    """The device of the innermost ``with torch.device(...)``, or the default device; None for
    none."""
    contexts = (mode for mode in reversed(_function_modes()) if isinstance(mode, _DeviceContext))
    device: torch.device | None = next((context.device for context in contexts), None)
    return device


# Collectives.

_collectives = partial(_private, "collectives")
_CPU_BUILD = "collectives cannot be simulated"
timeout_of: Callable[[Any], Any] = attrgetter("_timeout")
"""Of the options of NCCL."""
BUCKETS = tuple(
    _patch_point("collectives", f"torch._C._distributed_c10d.Reducer.{name}", "DDP fails there")
    for name in ("__init__", "_rebuild_buckets")
)
"""What allocates the buckets of ``DistributedDataParallel``."""
ddp_figures: Callable[[Any], Mapping[str, Any]] = _collectives(
    "torch.nn.parallel.DistributedDataParallel._get_ddp_logging_data",
    "a DDP that is captured too early is not named",
)
"""Its figures: ``iteration`` counts the first ten backwards."""
_UNBOXED = "collectives have no communicator"
work_of: Callable[[Any], Any] = _collectives("torch._C._distributed_c10d.Work.unbox", _CPU_BUILD)
"""The ``Work`` that an op has returned."""
group_of: Callable[[Any], Any] = _collectives(
    "torch._C._distributed_c10d.ProcessGroup.unbox", _UNBOXED
)
"""The ``ProcessGroup`` that is an argument of an op."""


def _done(result: Any) -> Any:
    future: Any = torch.futures.Future()
    future.set_result(result)
    c10d: Any = torch._C._distributed_c10d
    return c10d._create_work_from_future(future).boxed()


done_work: Callable[[Any], Any] = _collectives(
    "torch._C._distributed_c10d._create_work_from_future",
    _CPU_BUILD,
    value=_done,
)
"""What an op returns whose work is done: a ``Work`` with this result."""


# Capture on a GPU.

_gpu = partial(_private, "captures on a GPU")

visible_gpus: Callable[[], int] = _private(
    "cgtool run", "torch.cuda._device_count_nvml", "cgtool run does not know whether there is a GPU"
)
"""How many GPUs the process may use, by NVML: CUDA is not initialized, so the process may fork. -1
if NVML does not answer."""
current_raw_stream: Callable[[int], int] = _gpu(
    "torch._C._cuda_getCurrentRawStream", "the stream of a node is unknown", gpu=True
)
"""Handle of the current stream of a device."""
CUDAGraphBase: Any = _gpu(
    "torch._C._CUDAGraph", "templates of a script's graphs cannot be read", gpu=True
)
"""The class of C++ behind ``torch.cuda.CUDAGraph``, whose methods cgtool replaces."""
end_allocate_to_pool: Callable[[int, tuple[int, int]], None] = _gpu(
    "torch._C._cuda_endAllocateToPool", "code cannot be captured again", gpu=True
)
release_pool: Callable[[int, tuple[int, int]], None] = _gpu(
    "torch._C._cuda_releasePool", "code cannot be captured again", gpu=True
)
"""With the one before, (device, pool): what a ``capture_end`` that fails leaves undone."""
record_memory_history: Callable[..., None] = _gpu(
    "torch.cuda.memory._record_memory_history", "pools have no history"
)
records_memory_history: Callable[[], bool] = _gpu(
    "torch._C._cuda_isHistoryEnabled", "the lines of allocations are unknown", gpu=True
)
memory_snapshot: Callable[[], Mapping[str, Any]] = _gpu(
    "torch.cuda.memory._snapshot", "pools have no history"
)
clear_cublas_workspaces: Callable[[], None] = _gpu(
    "torch._C._cuda_clearCublasWorkspaces", "cuBLAS workspaces are not named", gpu=True
)
"""Raises MissingPrivateName where it is missing."""
spin: Callable[[int], None] = _gpu("torch.cuda._sleep", "a replay is timed with its own launch")
"""Keep the current stream busy for a number of clock cycles."""
DeviceType: Any = _gpu("torch._C._autograd.DeviceType", "PyTorch's profiler gives no node times")
is_profiler_enabled: Callable[[], bool] = _gpu(
    "torch.autograd.profiler._is_profiler_enabled",
    "a profiler around a replay is not noticed",
    value=lambda: bool(torch.autograd.profiler._is_profiler_enabled),
)
when_initialized: Callable[[Callable[[], None]], None] = _gpu(
    "torch.cuda._lazy_call", "the replays of a program are not timed"
)
"""Call back when CUDA is initialized; at once if it is."""
_PROFILER = "torch.autograd.profiler."
PROFILER_BEGINS = tuple(
    _patch_point(
        "captures on a GPU", _PROFILER + name, "`--times` conflicts with a profiler in the program"
    )
    for name in ("_prepare_profiler", "_enable_profiler")
)
PROFILER_ENDS = _patch_point(
    "captures on a GPU",
    _PROFILER + "_disable_profiler",
    "GPU times end where a program uses the profiler",
)
CAPTURE_HEALTH_CHECKS = (
    "_cuda_graph_capture_health_check",
    "_accelerator_graph_capture_health_check",
)
"""Methods of ``torch.optim.Optimizer``; a PyTorch has one of them or both."""


# Named ranges.

NVTX = _patch_point("named ranges", "torch.cuda.nvtx._nvtx", "NVTX ranges are not seen")
MARK_KERNELS_MODULES = ("torch.cuda.graph_annotations", "torch.cuda._graph_annotations")
"""Where the releases keep ``mark_kernels``."""
