"""How ``op_rules`` are applied.

Ops are looked up by name when they are dispatched, which also finds them inside libraries and in
backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from cgtool.detectors.function_rules import watch_index
from cgtool.detectors.host_read_rules import (
    COMPARING,
    HIDDEN_SYNC_IN_STOCK_MODULE,
    INSTEAD,
    READ,
    called_by_code,
    library_function,
    read_by_code,
    read_in_kernel,
)
from cgtool.detectors.op_rules import (
    H2D_PAGEABLE_COPY,
    INDEXING,
    LINALG_ERROR_CHECK,
    ONLY_ON_THE_CPU,
    OPS,
    OUTSIDE,
    SYNC_DYNAMIC_SHAPE_OP,
    SYNC_TRUTH_VALUE,
    Refusal,
)
from cgtool.detectors.reporting import COPIES, CapturedRegion
from cgtool.observe.ops import OpCall, Record, is_node_of, op_name
from cgtool.observe.tensors import listed_tensors, on_host, runs_on_the_cpu
from cgtool.torch_compat import op_key
from cgtool.torch_compat.dispatch_keys import Kwargs
from cgtool.torch_compat.private import higher_order_ops
from cgtool.torch_compat.shared_kernels import copies_to_device, rehearsed, shares_kernel

# Sorting.cpp, quantile_checks
_QUANTILE_CHECKS = ("aten::ge", "aten::le", "aten::logical_and_", "aten::all", "aten::new_ones")


def is_host_work(args: Sequence[Any]) -> bool:
    """True for an op that has only tensors on the host, even inside a function that has others:
    ``x.view(n)`` where ``n`` is a tensor on the host."""
    tensors = listed_tensors(args)
    return bool(tensors) and all(on_host(tensor) for tensor in tensors)


def run_checked(
    region: CapturedRegion,
    call: OpCall,
    func: Any,
    args: Sequence[Any],
    kwargs: Kwargs,
    run: Callable[[], Any],
) -> Any:
    """What ``run`` returns, which runs an op: report the op if CUDA would refuse it, and what its
    kernel calls where a GPU runs the same code; nothing outside a capture, and for tensors on the
    host.

    Raises CgtoolError unless the region collects.
    """
    is_checked = region.capturing and not region.on_host
    with watch_index(region, call, args):
        if is_checked:
            _refuse_op(region, call, func, args, kwargs)
    is_checked = is_checked and not region.fills_mask and op_key.is_supported()
    is_checked = is_checked and (shares_kernel(call.name) or call.name in higher_order_ops)
    if not is_checked or _refusal_of(region, call, call.name, args, kwargs) is not None:
        return run()
    names: list[str] = []
    refused: list[tuple[int, Refusal]] = []

    def inspect_op(inner: Any, args: Sequence[Any], kwargs: Kwargs, callers: Sequence[str]) -> None:
        names.append(op_name(inner))
        if is_host_work(args):
            return
        if op_key.may_have_python_kernel(callers[-1]):
            # A custom op: its lines are the user's, and each of its calls is one of theirs.
            before, region.call = region.call, None
            _refuse(region, call, op_name(inner), args, kwargs)
            region.call = before
        else:
            refusal = _refusal_of(region, call, op_name(inner), args, kwargs, callers)
            if refusal is not None:
                refused.append((len(names) - 1, refusal))

    # What a kernel in Python calls is at its own lines.
    outer = region.call
    region.call = None if op_key.may_have_python_kernel(call.name) else outer
    try:
        output = op_key.run_inspected(call.name, inspect_op, run)
    finally:
        region.call = outer
    if refused:
        # What runs on a GPU is seen there.
        rehearsal = rehearsed(func, args, kwargs, on_host) if runs_on_the_cpu() else None
        known = None if rehearsal is None else {inner.name for inner in rehearsal}
        # One reason for an op is enough.
        for index, refusal in refused:
            # A read after all that is rehearsed is one of the function that computes on the CPU.
            is_read = names[index] == "aten::_local_scalar_dense"
            if not is_read or known is None or not known.isdisjoint(names[index:]):
                region.refuse(refusal.code, refusal.subject, refusal.fix)
                break
    return output


def reason_for(call: OpCall, record: Record, args: Sequence[Any], kwargs: Kwargs) -> Refusal | None:
    """Why CUDA has just refused an op, which is still running; None if its rules say no more than
    the error does: a value was read, or copied."""
    region = CapturedRegion()
    region.record = record
    refusal = _refusal_of(region, call, call.name, args, kwargs)
    return None if refusal is None or refusal.subject == READ.subject else refusal


def _refuse_op(
    region: CapturedRegion, call: OpCall, func: Any, args: Sequence[Any], kwargs: Kwargs
) -> None:
    if is_host_work(args):
        return
    _refuse(region, call, call.name, args, kwargs)
    # function_rules has a rule for an assignment.
    is_assigned = region.function is torch.Tensor.__setitem__
    if not is_assigned and copies_to_device(func, args, kwargs, on_host):
        region.refuse(
            H2D_PAGEABLE_COPY,
            f"`{_short(call.name)}` with a CPU tensor, which it copies to the device,",
            "create the tensor on the device once, outside the captured code",
            why=COPIES,
        )


def _refuse(
    region: CapturedRegion, call: OpCall, name: str, args: Sequence[Any], kwargs: Kwargs
) -> None:
    """Report the op ``name``, called by the code or by a custom op, if CUDA would refuse it."""
    refusal = _refusal_of(region, call, name, args, kwargs)
    if refusal is not None:
        region.note_refused(args)
        region.refuse(refusal.code, refusal.subject, refusal.fix)


def _refusal_of(
    region: CapturedRegion,
    call: OpCall,
    name: str,
    args: Sequence[Any],
    kwargs: Kwargs,
    callers: Sequence[str] = (),
) -> Refusal | None:
    """Why CUDA would refuse the op ``name``. ``call`` is the op that the code calls, and
    ``callers`` are the ops inside which that one calls ``name``."""
    op = name.partition(".")[0]
    caller = callers[-1].partition(".")[0] if callers else call.autograd_node
    if (op, caller) in ONLY_ON_THE_CPU or _checks_quantiles(region, call):
        return None
    if op == "aten::_local_scalar_dense":
        if callers:
            return read_in_kernel(_short(call.name))
        return read_by_code(region.function, call)
    refusal = OPS.get(name) or OPS.get(op)
    if refusal is None or (op.startswith("aten::index_put") and region.fills_mask):
        return None
    if not refusal.when(args, kwargs):
        return None
    node = call.autograd_node
    if node and op in INDEXING:
        refusal = OPS[next((each for each in INDEXING if is_node_of(node, each)), op)]
    elif node and refusal.in_backward is not None:
        subject, fix = refusal.in_backward
        refusal = refusal._replace(subject=subject, fix=fix)
    function = _short(call.name) if callers else ""
    if not callers and refusal.code == LINALG_ERROR_CHECK:
        function = library_function() or _without_ex(call)
    elif not callers and refusal.code == SYNC_TRUTH_VALUE:
        # A function of PyTorch compares tensors for the user's code.
        function = library_function() or COMPARING.get(region.function, "")
    elif not callers and refusal.code == SYNC_DYNAMIC_SHAPE_OP:
        # One in C++ (`combinations`, which selects by a mask) has no frame of its own.
        called = called_by_code(call)
        is_pytorchs = hasattr(torch, called) and called.strip("_") not in refusal.subject
        function = called if is_pytorchs else ""
    if function in ("", _short(name).removesuffix("_")):
        return refusal
    callee, _, reads = refusal.subject.removesuffix(",").partition(", ")
    if callee == "`torch.linalg`" and function.startswith("linalg_"):
        subject = f"`torch.linalg.{function.removeprefix('linalg_')}`, {reads},"
    else:
        subject = f"`{function}`, which calls {refusal.subject.removesuffix(',')},"
    # The user's code does not branch where a library function compares.
    is_hidden = refusal.code == SYNC_TRUTH_VALUE
    return Refusal(
        HIDDEN_SYNC_IN_STOCK_MODULE if is_hidden else refusal.code,
        subject,
        INSTEAD.get(function, OUTSIDE),
    )


def _without_ex(call: OpCall) -> str:
    """``linalg_matrix_power``: the function of ``torch.linalg`` that the code calls, if no variant
    of it returns the error code; else ""."""
    called = called_by_code(call)
    has_one = not hasattr(torch.linalg, called) or hasattr(torch.linalg, f"{called}_ex")
    return "" if has_one else f"linalg_{called}"


def _short(name: str) -> str:
    return name.partition(".")[0].rpartition("::")[2].removeprefix("_")


def _checks_quantiles(region: CapturedRegion, call: OpCall) -> bool:
    """True for the comparison with which ``quantile`` checks its argument on the CPU alone."""
    if call.name != "aten::equal" or region.record is None:
        return False
    size = len(_QUANTILE_CHECKS)
    before = region.record.calls[max(0, call.index - size) : call.index]
    return tuple(each.name.partition(".")[0] for each in before) == _QUANTILE_CHECKS
