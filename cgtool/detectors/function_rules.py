"""Functions of PyTorch that a capture does not permit, or that deserve a note.

They dispatch no op of their own: ``print``, ``tolist``, copies between host and device.
Which calls are refused, and which similar ones are not, was seen on an H200 with torch 2.11.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from cgtool.detectors.host_read_rules import (
    COMPARING,
    HIDDEN_SYNC_IN_STOCK_MODULE,
    INSTEAD,
    READS,
    library_function,
)
from cgtool.detectors.op_rules import OUTSIDE
from cgtool.detectors.reporting import COPIES, CapturedRegion
from cgtool.findings import code
from cgtool.model.finding import Code
from cgtool.observe.effects import UNINITIALIZED
from cgtool.observe.frames import call_op, callers, is_subscript
from cgtool.observe.ops import OpCall
from cgtool.observe.tensors import (
    DEVICE,
    FROM_DATA,
    HOST,
    PINNED,
    is_cpu_device,
    is_cuda_device,
    listed_tensors,
    on_host,
    place_of,
    storage_place,
)
from cgtool.torch_compat.allocator import pins_in_captures
from cgtool.torch_compat.dispatch_keys import Kwargs
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import current_device
from cgtool.torch_compat.storages import extent

H2D_INDEX_WITH_LIST_OR_CPU_TENSOR = code("h2d-index-with-list-or-cpu-tensor")
H2D_PAGEABLE_COPY = code("h2d-pageable-copy")
H2D_TENSOR_FROM_PYTHON = code("h2d-tensor-from-python")
PIN_MEMORY_DURING_CAPTURE = code("pin-memory-during-capture")
SYNC_D2H_COPY = code("sync-d2h-copy")
SYNC_ITEM = code("sync-item")
SYNC_PRINT_OR_FORMAT = code("sync-print-or-format")

Rule = Callable[[CapturedRegion, Sequence[Any], dict[str, Any]], None]
"""Called with the arguments of a function before the function itself, during a capture."""


def names_gpu(value: Any) -> bool:
    """True for a CUDA device or its number."""
    return is_cuda_device(value) or (isinstance(value, int) and not isinstance(value, bool))


def target_of(args: Sequence[Any], kwargs: Kwargs) -> str | None:
    """Where ``Tensor.to`` puts its result; None leaves it where it is."""
    for argument in (*args[1:], kwargs.get("device"), kwargs.get("other")):
        if isinstance(argument, torch.Tensor):
            return DEVICE if place_of(argument) == DEVICE else HOST
        if names_gpu(argument):
            return DEVICE
        if is_cpu_device(argument):
            return HOST
        if isinstance(argument, bool):
            # to(device, dtype, non_blocking, copy): no device follows a flag.
            break
    return None


def is_number(value: Any) -> bool:
    """True for what ``x[mask] = value`` fills with, without a copy of shapes."""
    if isinstance(value, torch.Tensor):
        return value.dim() == 0 and place_of(value) != DEVICE
    return isinstance(value, bool | int | float | complex)


def _fills_mask(index: Any, value: Any) -> bool:
    """Whether PyTorch fills for ``x[index] = value``, if the index has a mask: the mask is the
    only index that is a tensor (aten/native/TensorAdvancedIndexing.cpp, canDispatchToMaskedFill).
    """
    parts = index if isinstance(index, tuple) else (index,)
    tensors = [part for part in parts if not _keeps_masks(part)]
    return is_number(value) and len(tensors) < 2


def _keeps_masks(part: Any) -> bool:
    """Whether a part of an index only selects a view."""
    if isinstance(part, torch.Tensor):
        return part.dim() == 0 and part.dtype is not torch.bool
    is_int = isinstance(part, int) and not isinstance(part, bool)
    return is_int or part is None or part is Ellipsis or isinstance(part, slice)


def _refuse_move(
    region: CapturedRegion, args: Sequence[Any], kwargs: Kwargs, target: str | None
) -> None:
    """Report .to, .cuda or .cpu between the device and the host, if CUDA refuses the copy."""
    tensor, waits = args[0], not _does_not_wait(args, kwargs)
    source = place_of(tensor)
    if target is None or (source == DEVICE) == (target == DEVICE) or not tensor.numel():
        return
    if target == DEVICE:
        subject, is_pinned = "device (.cuda, .to)", source == PINNED and _is_dense(tensor)
    else:
        # _to_copy (TensorConversions.cpp)
        subject, is_pinned = "host (.cpu, .to)", not waits and tensor.layout is torch.strided
    _refuse_crossing(region, target, f"moving a tensor to the {subject}", is_pinned, waits)


def _does_not_wait(args: Sequence[Any], kwargs: Kwargs) -> bool:
    """``non_blocking`` of ``to``, ``cuda`` and ``copy_``: the first flag among the arguments."""
    flags = (argument for argument in args[1:] if isinstance(argument, bool))
    return bool(next(flags, kwargs.get("non_blocking", False)))


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements of a tensor are one block of memory, in any order."""
    return extent(tensor.shape, tensor.stride()) == tensor.numel()


def _refuse_crossing(
    region: CapturedRegion, target: str, subject: str, is_pinned: bool, waits: bool
) -> None:
    """Report a copy between the device and the host, unless the memory of the host is pinned and
    the host need not wait (cuda/Copy.cu, ``copy_kernel_cuda``)."""
    copy_code = H2D_PAGEABLE_COPY if target == DEVICE else SYNC_D2H_COPY
    if not is_pinned:
        _refuse_copy(region, copy_code, subject)
    elif waits:
        subject = f"{subject} without `non_blocking=True`"
        region.refuse(copy_code, subject, "pass `non_blocking=True`")


def refuse_from_python(region: CapturedRegion, args: Sequence[Any], kwargs: Kwargs) -> None:
    """Report ``torch.tensor(data, device="cuda")`` and the like; only called for CUDA results."""
    data = args[0] if args else kwargs.get("data", kwargs.get("obj"))
    if isinstance(data, list | tuple) and not data:
        # Nothing is copied: copy_ of no elements returns at once (aten/src/ATen/native/Copy.cpp).
        return
    if region.is_compiled and is_python(data):
        # A constant of the compiled code: GraphLowering.get_attr (torch/_inductor/graph.py).
        return
    if any(not on_host(tensor) for tensor in listed_tensors((data,))):
        # A tensor is copied on the device; of those in a list, each is read on the host.
        if not isinstance(data, torch.Tensor):
            region.refuse(
                SYNC_ITEM,
                "creating a tensor from a list of device tensors, each of which is read on the "
                "host,",
                "use torch.stack",
            )
        return
    _refuse_copy(
        region, H2D_TENSOR_FROM_PYTHON, "creating a device tensor from Python or NumPy data"
    )


def is_python(data: Any) -> bool:
    """Whether ``data`` is a number, or lists of numbers."""
    if isinstance(data, list | tuple):
        return all(map(is_python, data))
    return type(data) in (bool, int, float, complex)


def note_pinning(region: CapturedRegion, op: str = "") -> None:
    """Note that pinned host memory is allocated, by ``op``, unless the device alone fills it and
    this PyTorch permits it. It is not permitted in other threads."""
    if region.in_other_thread:
        region.refuse(PIN_MEMORY_DURING_CAPTURE, "pinning host memory in another thread")
    filled_by_device = op.startswith((*UNINITIALIZED, "aten::to", "aten::_to_copy"))
    if not pins_in_captures():
        reason = (
            "its allocator asks whether events have happened, which ends a capture (graphs have "
            "pools of pinned memory since PyTorch 2.11)"
        )
    elif filled_by_device:
        return
    else:
        reason = "the host fills it only once, and every replay copies what it holds at that time"
    region.note(
        PIN_MEMORY_DURING_CAPTURE,
        f"pinned host memory is allocated during the capture: {reason}",
    )


def _refuse_copy(
    region: CapturedRegion, copy_code: Code, subject: str, fix: str | None = None
) -> None:
    library = library_function()
    if library is not None and f"`{library}`" not in subject:
        subject, fix = f"{subject} in `{library}`", f"replace it, or {OUTSIDE}"
    region.refuse(copy_code, subject, fix, why=COPIES)


def _reads(read_code: Code, subject: str, fix: str | None = None) -> Rule:
    def rule(region: CapturedRegion, args: Sequence[Any], _kwargs: Kwargs) -> None:
        if args and isinstance(args[0], torch.Tensor) and not on_host(args[0]):
            region.refuse(read_code, subject, fix)

    return rule


def _index(region: CapturedRegion, args: Sequence[Any], _kwargs: Kwargs) -> None:
    tensor, index = args[0], args[1]
    if on_host(tensor):
        return
    parts = index if isinstance(index, tuple) else (index,)
    for part in parts:
        is_list = isinstance(part, (list, range)) or type(part).__module__ == "numpy"
        if is_list or (
            isinstance(part, torch.Tensor) and part.dim() > 0 and place_of(part) == HOST
        ):
            refuse_index(region)
    value = args[2] if len(args) > 2 else None
    if isinstance(value, torch.Tensor) and value.dim() > 0 and place_of(value) == HOST:
        _refuse_copy(
            region, H2D_PAGEABLE_COPY, "assigning a CPU tensor to a part of a device tensor"
        )
    if is_number(value) and any(
        isinstance(part, torch.Tensor)
        and part.dim() > 0
        and part.dtype not in (torch.bool, torch.uint8)
        for part in parts
    ):
        _refuse_copy(
            region,
            H2D_INDEX_WITH_LIST_OR_CPU_TENSOR,
            "assigning a host scalar through an index tensor",
        )


def refuse_index(region: CapturedRegion) -> None:
    """Report an index on the host that is copied to the device."""
    _refuse_copy(
        region, H2D_INDEX_WITH_LIST_OR_CPU_TENSOR, "indexing with a list, an array or a CPU tensor"
    )


def _fill_element(region: CapturedRegion, target: torch.Tensor, value: torch.Tensor) -> None:
    # copy_to (TensorIndexing.h) fills with a number, unless the target is of its shape: ().
    if value.dim() == 0 and place_of(value) == HOST and not on_host(target):
        _refuse_copy(
            region,
            H2D_PAGEABLE_COPY,
            "assigning a number to a single element, which copies it from the host,",
            "assign to a slice (x[i : i + 1] = number), or call x[i].fill_(number)",
        )


def _serialize(region: CapturedRegion, args: Sequence[Any], _kwargs: Kwargs) -> None:
    # copy.copy asks for the same parts of a tensor, and reads none of its values.
    is_copy = any(caller.f_code is copy.copy.__code__ for caller in callers(sys._getframe()))
    if not is_copy and not on_host(args[0]):
        _refuse_copy(region, SYNC_D2H_COPY, "serializing a tensor (torch.save, pickle)")


def _new_tensor(region: CapturedRegion, args: Sequence[Any], kwargs: Kwargs) -> None:
    if not on_host(args[0]):
        refuse_from_python(region, args[1:], kwargs)


def _copy_in_place(region: CapturedRegion, args: Sequence[Any], kwargs: Kwargs) -> None:
    target, source = args[0], args[1] if len(args) > 1 else kwargs.get("src")
    if not isinstance(source, torch.Tensor) or not source.numel():
        return
    if on_host(target) != on_host(source):
        host, other = (target, source) if on_host(target) else (source, target)
        # What is not one block goes through ordinary memory (cuda/Copy.cu).
        is_pinned = place_of(host) == PINNED and (
            host.is_contiguous()
            or (_is_dense(host) and (host.dtype, host.stride()) == (other.dtype, other.stride()))
        )
        subject, waits = "`copy_` between host and device", not _does_not_wait(args, kwargs)
        _refuse_crossing(region, place_of(target), subject, is_pinned, waits)


def _copy_storage(region: CapturedRegion, args: Sequence[Any], kwargs: Kwargs) -> None:
    target, source = args[0], args[1] if len(args) > 1 else kwargs["source"]
    places = [
        storage_place(each if isinstance(each, torch.UntypedStorage) else each.untyped())
        for each in (target, source)
    ]
    if (places[0] == DEVICE) != (places[1] == DEVICE) and source.nbytes():
        subject = "copying a storage between host and device"
        waits = not _does_not_wait(args, kwargs)
        _refuse_crossing(region, places[0], subject, PINNED in places, waits)


def _new(region: CapturedRegion, args: Sequence[Any], kwargs: Kwargs) -> None:
    # Sizes, a storage and a tensor are not copied.
    data = args[1] if len(args) > 1 else kwargs.get("data")
    is_data = isinstance(data, list | tuple) or type(data).__module__ == "numpy"
    if data is not None and is_data and not all(isinstance(each, int) for each in data):
        _new_tensor(region, (args[0], data), {})


def _make_sparse(region: CapturedRegion, args: Sequence[Any], kwargs: Kwargs) -> None:
    is_sized = len(args) > 2 or kwargs.get("size") is not None
    checks = kwargs.get("check_invariants")
    if checks is None:
        checks = torch.sparse.check_sparse_tensor_invariants.is_enabled()
    indices = args[0] if args else kwargs.get("indices")
    reads = checks or not is_sized
    if reads and isinstance(indices, torch.Tensor) and not on_host(indices):
        region.refuse(
            SYNC_ITEM,
            "`sparse_coo_tensor`, which reads the range of its indices on the host,",
            "pass size= and check_invariants=False",
        )


def _ctc_loss(region: CapturedRegion, args: Sequence[Any], kwargs: Kwargs) -> None:
    names = ("log_probs", "targets", "input_lengths", "target_lengths", "blank")
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    scores, targets = given["log_probs"], given["targets"]
    # cuDNN reads the lengths on the device (_use_cudnn_ctc_loss_tensor, cudnn/LossCTC.cpp).
    may_be_of_cudnn = (scores.dtype, targets.dtype) == (torch.float32, torch.int32) and (
        targets.dim() == 1 and given.get("blank", 0) == 0
    )
    lengths = given["input_lengths"], given["target_lengths"]
    on_device = any(isinstance(each, torch.Tensor) and not on_host(each) for each in lengths)
    if on_device and not may_be_of_cudnn:
        # ctc_loss (LossCTC.cpp), before its kernel copies them back.
        _refuse_copy(
            region,
            SYNC_D2H_COPY,
            "`ctc_loss`, which copies its lengths to the host,",
            "compute it outside the captured code",
        )


def _one_hot(region: CapturedRegion, args: Sequence[Any], kwargs: Kwargs) -> None:
    classes = args[0] if args else kwargs.get("tensor", kwargs.get("input"))
    count = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
    is_on_device = isinstance(classes, torch.Tensor) and not on_host(classes)
    if is_on_device and isinstance(count, int) and count == -1:
        region.refuse(
            HIDDEN_SYNC_IN_STOCK_MODULE,
            "`one_hot` without the number of classes, which reads the largest class on the host,",
            INSTEAD["one_hot"],
        )


FUNCTIONS: dict[Any, Rule] = {
    torch.nn.functional.one_hot: _one_hot,
    torch.ctc_loss: _ctc_loss,
    torch.sparse_coo_tensor: _make_sparse,
    torch.Tensor.tolist: _reads(
        SYNC_ITEM,
        "`Tensor.tolist`",
        "keep the values on the device; instead of parts whose sizes depend on them, use parts of "
        "a fixed capacity and a mask",
    ),
    torch.Tensor.numpy: _reads(SYNC_ITEM, "`Tensor.numpy`"),
    torch.Tensor.__array__: _reads(SYNC_ITEM, "`numpy.asarray` of a tensor"),
    torch.Tensor.__repr__: _reads(SYNC_PRINT_OR_FORMAT, "printing a tensor"),
    torch.Tensor.__format__: _reads(SYNC_PRINT_OR_FORMAT, "formatting a tensor"),
    torch.Tensor.__reduce_ex__: _serialize,
    torch.Tensor.__setitem__: _index,
    torch.Tensor.copy_: _copy_in_place,
    torch.Tensor.new: _new,
    torch.Tensor.new_tensor: _new_tensor,
    torch.UntypedStorage.copy_: _copy_storage,
    torch.Tensor.to: lambda region, args, kwargs: _refuse_move(
        region, args, kwargs, target_of(args, kwargs)
    ),
    torch.Tensor.cuda: lambda region, args, kwargs: _refuse_move(region, args, kwargs, DEVICE),
    torch.Tensor.cpu: lambda region, args, kwargs: _refuse_move(region, args, kwargs, HOST),
    torch.Tensor.pin_memory: lambda region, _args, _kwargs: note_pinning(region),
}

FROM_PYTHON = frozenset(getattr(torch, name) for name in FROM_DATA)
"""Checked with ``refuse_from_python`` when the result is on the GPU."""

_GET_ITEM, _SET_ITEM = torch.Tensor.__getitem__, torch.Tensor.__setitem__
_FUNCTIONS: list[Any] = list(dict.fromkeys((*FUNCTIONS, *FROM_PYTHON, *READS, *COMPARING)))
_OWNERS: tuple[Any, ...] = (torch.Tensor, torch, torch.nn.functional, torch.UntypedStorage)
_WATCHED: list[tuple[Any, Any]] = [
    (owner, function)
    # Replaced, this one would make a sequence of a tensor (`PySequence_Check`).
    for function in _FUNCTIONS
    if function is not _GET_ITEM
    for owner in _OWNERS
    if getattr(owner, function.__name__, None) is function
]


def watch_functions(region: CapturedRegion) -> Patches:
    """Apply the rules to every function that the code of ``region`` calls, and keep
    ``region.function`` up to date, until the result is closed.

    Functions of PyTorch are replaced by name. A function mode would see them all, but make
    ``has_torch_function`` true, for which PyTorch takes other paths.
    """
    running = threading.local()

    def call(function: Any, original: Any, *args: Any, **kwargs: Any) -> Any:
        # What a function calls itself is not the user's call.
        is_inner = getattr(running, "inside", False)
        if is_inner or not region.capturing:
            return call_op(original, args, kwargs)
        before = region.function, region.fills_mask, region.is_refused
        running.inside, around = True, region.call
        try:
            # In a custom op, the line is the one in its code.
            region.call = None
            known = len(region.refusals)
            _apply(region, function, args, kwargs)
            region.is_refused |= len(region.refusals) > known
            region.call = around
            region.function = function
            region.fills_mask = function is _SET_ITEM and _fills_mask(args[1], args[2])
            return call_op(original, args, kwargs)
        finally:
            running.inside, region.call = False, around
            region.function, region.fills_mask, region.is_refused = before

    patches = Patches()
    for owner, function in _WATCHED:
        patches.stand_in(owner, function.__name__, functools.partial(call, function))
    return patches


@contextlib.contextmanager
def watch_index(region: CapturedRegion, call: OpCall, args: Sequence[Any]) -> Iterator[None]:
    """Entered while an op is checked: applies the rules of ``x[index]``, which cannot be replaced
    as a function can, and of ``x[index] = number``, whose op depends on the shape of ``x[index]``.
    """
    if region.function is _SET_ITEM and call.name.startswith("aten::copy_"):
        _fill_element(region, args[0], args[1])
    if region.function is not None or call.innermost is None or not is_subscript(call.innermost):
        yield
        return
    if call.name.startswith("aten::index.") and len(args) > 1:
        _index(region, (args[0], tuple(args[1])), {})
    region.function = _GET_ITEM
    try:
        yield
    finally:
        region.function = None


def _apply(region: CapturedRegion, function: Any, args: Sequence[Any], kwargs: Kwargs) -> None:
    rule = FUNCTIONS.get(function)
    if rule is not None:
        refused = len(region.refusals)
        rule(region, args, kwargs)
        if len(region.refusals) > refused:
            region.note_refused(args)
    device = kwargs.get("device")
    if function in FROM_PYTHON and names_gpu(current_device() if device is None else device):
        refuse_from_python(region, args, kwargs)
    elif function in FROM_PYTHON and kwargs.get("pin_memory") is True:
        note_pinning(region)
