"""Ops that CUDA refuses while a stream is capturing, mostly because they make the host wait.

Ops are looked up by name when they are dispatched, which also finds them inside libraries and in
backward. Each rule has an entry in tests/corpus/entries/refused_ops.py, which an H200 refused with
torch 2.11: if ``benchmarks/corpus.py --truth`` captures it, the rule is out of date.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple

import torch

from cgtool.detectors.reporting import CapturedRegion
from cgtool.findings import code
from cgtool.model.finding import Code
from cgtool.observe.frames import call_op, package_part
from cgtool.observe.ops import OpCall, op_name
from cgtool.observe.tensors import on_host, runs_on_the_cpu, tensors_of
from cgtool.torch_compat import op_key
from cgtool.torch_compat.private import (
    TorchDispatchMode,
    fake_tensor_mode,
    schema_of,
    sparse_indices,
)
from cgtool.torch_compat.shared_kernels import copies_to_device, rehearsed, shares_kernel

CONDITIONAL_NODE_LIMITS = code("conditional-node-limits")
HIDDEN_SYNC_IN_STOCK_MODULE = code("hidden-sync-in-stock-module")
H2D_PAGEABLE_COPY = code("h2d-pageable-copy")
LINALG_ERROR_CHECK = code("linalg-error-check")
NAN_GUARD_SYNC = code("nan-guard-sync")
BOUNDS = code("sync-slice-with-tensor-bounds")
SYNC_D2H_COPY = code("sync-d2h-copy")
SYNC_DYNAMIC_SHAPE_OP = code("sync-dynamic-shape-op")
SYNC_ITEM = code("sync-item")
SYNC_MASKED_ASSIGNMENT = code("sync-masked-assignment")
SYNC_PRINT_OR_FORMAT = code("sync-print-or-format")
SYNC_TRUTH_VALUE = code("sync-truth-value")

_BOUNDS = {
    torch.Tensor.__getitem__, torch.Tensor.__setitem__, torch.arange, torch.linspace,
    torch.narrow, torch.Tensor.narrow, torch.split, torch.Tensor.split, torch.full, torch.zeros,
    torch.Tensor.expand, torch.Tensor.view, torch.Tensor.reshape, torch.Tensor.__index__,
    torch.chunk, torch.Tensor.chunk, torch.Tensor.repeat, torch.nn.functional.pad,
}  # fmt: skip
_SET_ITEM = torch.Tensor.__setitem__
_OUTSIDE = "call it outside the captured code"
COPIES = (
    "it copies between the device and pageable host memory, which CUDA refuses "
    "(cudaErrorStreamCaptureUnsupported, 900); PyTorch may raise 'Cannot copy between CPU and CUDA "
    "tensors during CUDA graph capture' instead"
)
_MASKS = (torch.bool, torch.uint8)
_RANGES = ("arange", "linspace", "logspace", "range")


class Refusal(NamedTuple):
    """The arguments of ``CapturedRegion.refuse``."""

    code: Code
    subject: str
    fix: str | None = None


_MASK = Refusal(
    SYNC_MASKED_ASSIGNMENT,
    "indexing with a boolean mask, whose output shape depends on values,",
    "use torch.where or masked_fill",
)


class OpRule(NamedTuple):
    """What CUDA refuses of an op."""

    refusal: Refusal
    when: Callable[[Sequence[Any], dict[str, Any]], bool] = lambda _args, _kwargs: True
    """Whether it refuses this call."""


def _argument(
    args: Sequence[Any], kwargs: dict[str, Any], place: int, name: str, default: Any
) -> Any:
    return args[place] if len(args) > place else kwargs.get(name, default)


def _dynamic(function: str) -> OpRule:
    return OpRule(
        Refusal(SYNC_DYNAMIC_SHAPE_OP, f"`{function}`, whose output shape depends on values,")
    )


def _compares_values(args: Sequence[Any], _kwargs: dict[str, Any]) -> bool:
    # cuda_equal (cuda/Equal.cpp) answers at once where sizes differ or nothing is to be compared.
    return bool(args[0].shape == args[1].shape and args[0].numel())


def _indexes_with_mask(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    # expandTensors (IndexingUtils.h) finds the ones of a host's mask on the host, and copies them
    # from pinned memory.
    indices = _argument(args, kwargs, 1, "indices", ())
    return any(
        isinstance(index, torch.Tensor) and index.dtype in _MASKS and not on_host(index)
        for index in indices
    )


def _puts_with_mask(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    # canDispatchToMaskedFill (TensorAdvancedIndexing.cpp): a number of the host is filled in.
    value, accumulate = args[2], _argument(args, kwargs, 3, "accumulate", False)
    fills = value.numel() == 1 and on_host(value) and not accumulate
    return not fills and _indexes_with_mask(args, kwargs)


def _has_no_range(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    low, high = _argument(args, kwargs, 2, "min", 0), _argument(args, kwargs, 3, "max", 0)
    return bool(low == high and args[0].numel())


def _is_rectangular(args: Sequence[Any], _kwargs: dict[str, Any]) -> bool:
    matrices: torch.Tensor = args[0]
    return matrices.numel() > 0 and matrices.shape[-1] != matrices.shape[-2]


_OPS: dict[str, OpRule] = {
    "aten::is_nonzero": OpRule(Refusal(SYNC_TRUTH_VALUE, "the truth value of a tensor")),
    "aten::equal": OpRule(
        Refusal(
            SYNC_TRUTH_VALUE,
            "`torch.equal`",
            "use (a == b).all() and read it after the replay; call a function that compares its "
            "arguments (`istft`) outside the captured code",
        ),
        _compares_values,
    ),
    "aten::allclose": OpRule(
        Refusal(
            SYNC_TRUTH_VALUE, "`torch.allclose`", "use torch.isclose() and read it after the replay"
        )
    ),
    "aten::bincount": OpRule(
        Refusal(
            SYNC_DYNAMIC_SHAPE_OP,
            "`bincount`, which reads a maximum on the host to size its output,",
            "use torch.zeros(n_bins, device=...).scatter_add_(...) with a fixed number of bins",
        )
    ),
    # cuda/SummaryOps.cu, _histc_cuda_template
    "aten::histc": OpRule(
        Refusal(
            SYNC_D2H_COPY,
            "`histc` with equal min and max, which copies the smallest and largest value to the "
            "host,",
            "pass different min= and max=",
        ),
        _has_no_range,
    ),
    # cuda/LossCTC.cu, ctc_loss_gpu_template
    "aten::_ctc_loss": OpRule(
        Refusal(
            H2D_PAGEABLE_COPY,
            "`ctc_loss`, which copies its lengths to the device,",
            "compute it outside the captured code",
        )
    ),
    "aten::_linalg_check_errors": OpRule(
        Refusal(LINALG_ERROR_CHECK, "`torch.linalg`, which reads its error code on the host,"),
        lambda args, _kwargs: args[0].numel() > 0,
    ),
    # cuda/linalg/BatchLinearAlgebra.cpp, lu_factor: cuBLAS takes square matrices only, and MAGMA
    # waits for its own stream.
    "aten::linalg_lu_factor_ex": OpRule(
        Refusal(
            LINALG_ERROR_CHECK,
            "an LU factorisation of matrices that are not square, for which MAGMA waits on the "
            "host,",
            "compute it outside the captured code",
        ),
        _is_rectangular,
    ),
    # cuda/linalg/BatchLinearAlgebraLib.cpp, ldl_factor_cusolver
    "aten::linalg_ldl_factor_ex": OpRule(
        Refusal(
            LINALG_ERROR_CHECK,
            "`ldl_factor`, whose function of cuSOLVER (sytrf) does not run in a capture,",
            "compute it outside the captured code",
        ),
        lambda args, _kwargs: args[0].numel() > 0,
    ),
    # CUDAFunctions: cusolverDnXgeev needs its workspace on the host too.
    **dict.fromkeys(
        ("aten::linalg_eig", "aten::_linalg_eigvals"),
        OpRule(
            Refusal(
                LINALG_ERROR_CHECK,
                "`torch.linalg.eig`, part of which runs on the host,",
                "compute it outside the captured code",
            ),
            lambda args, _kwargs: args[0].numel() > 0,
        ),
    ),
    # sparse/cuda/SparseCUDATensor.cu, _coalesce_sparse_cuda: thrust counts the distinct indices.
    "aten::_coalesce": OpRule(
        Refusal(
            SYNC_DYNAMIC_SHAPE_OP,
            "`coalesce`, which counts the distinct indices on the host,",
            "use the tensor uncoalesced, or a dense gradient (sparse=False)",
        ),
        lambda args, _kwargs: sparse_indices(args[0]).shape[1] > 1,
    ),
    # cuda/Indexing.cu, masked_fill__cuda
    "aten::masked_fill_.Tensor": OpRule(
        Refusal(
            SYNC_ITEM,
            "`masked_fill` with a tensor as value, which is read on the host,",
            "use torch.where(mask, value, x)",
        ),
        lambda args, _kwargs: not on_host(args[2]),
    ),
    # cuda/Distributions.cpp, bernoulli_tensor_cuda_kernel
    "aten::bernoulli_.Tensor": OpRule(
        Refusal(
            H2D_PAGEABLE_COPY,
            "`bernoulli_` with probabilities on the CPU, which it copies to the device,",
            "create the probabilities on the device, once",
        ),
        lambda args, _kwargs: on_host(args[1]),
    ),
    "aten::repeat_interleave.Tensor": OpRule(
        Refusal(
            SYNC_DYNAMIC_SHAPE_OP,
            "`repeat_interleave` with a tensor of repeats",
            "pass output_size=, the total, if it is known in advance",
        ),
        lambda _args, kwargs: kwargs.get("output_size") is None,
    ),
    "aten::index": OpRule(_MASK._replace(code=SYNC_DYNAMIC_SHAPE_OP), _indexes_with_mask),
    **dict.fromkeys(
        ("aten::index_put", "aten::index_put_", "aten::_index_put_impl_"),
        OpRule(_MASK, _puts_with_mask),
    ),
    "aten::nonzero": _dynamic("nonzero"),
    "aten::masked_select": _dynamic("masked_select"),
    "aten::_unique": _dynamic("unique"),
    "aten::_unique2": _dynamic("unique"),
    "aten::unique_dim": _dynamic("unique"),
    "aten::unique_consecutive": _dynamic("unique_consecutive"),
    "aten::unique_dim_consecutive": _dynamic("unique_consecutive"),
}
"""By the name of the op, with or without its overload. Where a kernel on the CPU is the same code
as on a GPU, what it calls is looked up too (``inside_kernel``)."""

_ONLY_ON_THE_CPU = frozenset(
    {
        # FunctionsManual.cpp, evenly_distribute_backward: a GPU compares without reading.
        *itertools.product(
            ("aten::_local_scalar_dense", "aten::masked_fill_"),
            ("MedianBackward0", "NanmedianBackward0", "MaxBackward1", "MinBackward1"),
        ),
        # Distributions.cpp, multinomial_out: a GPU asserts in a kernel.
        ("aten::_local_scalar_dense", "aten::multinomial"),
        # ReduceOps.cpp, std_var_all_reduce_cpu
        ("aten::_local_scalar_dense", "aten::std"),
        ("aten::_local_scalar_dense", "aten::var"),
        # BatchLinearAlgebra.cpp, linalg_lu_solve_out: the range of the pivots.
        ("aten::_local_scalar_dense", "aten::linalg_lu_solve"),
        # BatchLinearAlgebra.cpp, cholesky_inverse_out: its error codes are on the host.
        ("aten::_linalg_check_errors", "aten::cholesky_inverse"),
    }
)
"""Ops that PyTorch's code calls for tensors of the CPU alone, and the autograd node or the op in
which it calls them."""
# Sorting.cpp, quantile_checks
_QUANTILE_CHECKS = ("aten::ge", "aten::le", "aten::logical_and_", "aten::all", "aten::new_ones")

_BACKWARD = Refusal(
    HIDDEN_SYNC_IN_STOCK_MODULE,
    "backward, which reads a tensor value on the host,",
    "do not use detect_anomaly, or call the function outside the captured code",
)


def _without_capturable() -> Iterator[str]:
    """Files of PyTorch's optimizers that have no option to be captured."""
    base = torch.optim.Optimizer
    for kind in vars(torch.optim).values():
        if isinstance(kind, type) and issubclass(kind, base) and kind is not base:
            constructor = inspect.unwrap(kind.__init__).__code__
            if "capturable" not in constructor.co_varnames:
                yield package_part(constructor.co_filename)


_LIBRARY_FUNCTION = Refusal(
    HIDDEN_SYNC_IN_STOCK_MODULE,
    "a function of PyTorch, which reads a tensor value on the host,",
    f"replace it, or {_OUTSIDE}",
)
# Who reads a value on the host, by a part of the file name of the innermost frame; in order.
_LIBRARIES: dict[str, Refusal] = {
    "/torch/_tensor_str.py": Refusal(SYNC_PRINT_OR_FORMAT, "printing a tensor"),
    "/torch/amp/grad_scaler.py": Refusal(
        NAN_GUARD_SYNC, "`GradScaler`, which reads `found_inf` on the host,"
    ),
    "/torch/nn/utils/clip_grad.py": Refusal(
        NAN_GUARD_SYNC,
        "`clip_grad_norm_(error_if_nonfinite=True)`, which reads the norm on the host,",
        "omit error_if_nonfinite, and check the norm after the replay",
    ),
    **dict.fromkeys(
        _without_capturable(),
        Refusal(
            code("optimizer-not-capturable"),
            "the optimizer, which reads values on the host and has no `capturable` option,",
            "call its `step()` after the replay, or use an optimizer that has the option, such as "
            "AdamW",
        ),
    ),
    "/torch/optim/sgd.py": Refusal(
        code("sgd-tensor-lr-sync"), "SGD with a tensor learning rate, which it reads on the host,"
    ),
    "/torch/optim/swa_utils.py": Refusal(
        HIDDEN_SYNC_IN_STOCK_MODULE,
        "`AveragedModel`, which reads its counter on the host,",
        "update the averages after the replay",
    ),
    "/torch/optim/": Refusal(
        code("optimizer-not-capturable"), "the optimizer, which reads its state on the host,"
    ),
    "/torch/distributions/": Refusal(
        HIDDEN_SYNC_IN_STOCK_MODULE,
        "`torch.distributions`, which checks its arguments on the host,",
        "construct the distribution with validate_args=False",
    ),
    "/torch/nn/modules/batchnorm.py": Refusal(
        HIDDEN_SYNC_IN_STOCK_MODULE,
        "batch norm with momentum=None, which reads its counter on the host,",
        "give it a fixed momentum",
    ),
    "/torch/autograd/": _BACKWARD,
    "/torch/nn/modules/transformer.py": Refusal(
        HIDDEN_SYNC_IN_STOCK_MODULE,
        "a mask that the transformer compares with a causal one on the host",
        "pass is_causal=True or is_causal=False",
    ),
    "/torch/nn/": _LIBRARY_FUNCTION,
    "/torch/functional.py": _LIBRARY_FUNCTION,
    "/torch/_linalg_utils.py": Refusal(
        LINALG_ERROR_CHECK, "`torch.linalg`, which reads its error code on the host,"
    ),
}

# Who reads a value on the host, by the torch function that the user called.
_READS: dict[Any, Refusal] = {
    **dict.fromkeys(
        (torch.Tensor.__repr__, torch.Tensor.__format__),
        Refusal(SYNC_PRINT_OR_FORMAT, "printing a tensor"),
    ),
    **dict.fromkeys(
        (torch.Tensor.__bool__, torch.Tensor.__contains__, torch.is_nonzero),
        Refusal(SYNC_TRUTH_VALUE, "the truth value of a tensor (if, while, assert, bool())"),
    ),
    **dict.fromkeys(
        _BOUNDS, Refusal(BOUNDS, "a tensor as a bound or size, which is read on the host,")
    ),
    **dict.fromkeys(
        (torch.Tensor.__getitem__, torch.Tensor.__setitem__),
        Refusal(
            BOUNDS,
            "a tensor as a bound or as the index of a row, which is read on the host,",
            "select a row by x.index_select(dim, index.view(1)); instead of a slice, compare "
            "positions with the bound on the device and mask",
        ),
    ),
    torch.full: Refusal(
        BOUNDS,
        "`torch.full` with a tensor as size or value, which is read on the host,",
        "fill with a tensor by torch.empty(...).fill_(value)",
    ),
}

READERS = tuple(_READS)
"""The functions that a read on the host is named after."""


def is_host_work(args: Sequence[Any]) -> bool:
    """True for an op that has only tensors on the host, even inside a function that has others:
    ``x.view(n)`` where ``n`` is a tensor on the host."""
    tensors = list(tensors_of(args))
    return bool(tensors) and all(on_host(tensor) for tensor in tensors)


def refuse_op(
    region: CapturedRegion, call: OpCall, func: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> None:
    """Report an op that CUDA would refuse; nothing outside a capture, and for tensors on the host.

    Raises CgtoolError unless the region collects.
    """
    if not region.capturing or region.on_host or is_host_work(args):
        return
    if call.name == "cond" and len(args) == 4:
        _refuse_random_branches(region, args)
    else:
        _refuse(region, call, call.name, args, kwargs)
        is_assigned = region.function is _SET_ITEM  # function_rules has a rule for it
        if not is_assigned and copies_to_device(func, args, kwargs, on_host):
            region.refuse(
                H2D_PAGEABLE_COPY,
                f"`{_short(call.name)}` with a CPU tensor, which it copies to the device,",
                "create the tensor on the device once, outside the captured code",
                why=COPIES,
            )


@contextlib.contextmanager
def inside_kernel(
    region: CapturedRegion, call: OpCall, func: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> Iterator[None]:
    """Around the kernel of an op: report the ops that it calls and CUDA would refuse, where the
    same code runs on a GPU."""
    is_seen = region.capturing and not region.on_host and not region.fills_mask
    is_seen = is_seen and shares_kernel(call.name) and op_key.is_supported()
    if not is_seen or _refusal_of(region, call, call.name, args, kwargs) is not None:
        yield
        return
    names: list[str] = []
    refused: list[tuple[int, Refusal]] = []

    def inspect_op(
        inner: Any, args: Sequence[Any], kwargs: dict[str, Any], callers: Sequence[str]
    ) -> None:
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
        with op_key.inside(call.name, inspect_op):
            yield
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
                region.refuse(*refusal)
                break


def _refuse(
    region: CapturedRegion, call: OpCall, name: str, args: Sequence[Any], kwargs: dict[str, Any]
) -> None:
    """Report the op ``name``, called by the code or by a custom op, if CUDA would refuse it."""
    refusal = _refusal_of(region, call, name, args, kwargs)
    if refusal is not None:
        region.refuse(*refusal)


def _refusal_of(
    region: CapturedRegion,
    call: OpCall,
    name: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    callers: Sequence[str] = (),
) -> Refusal | None:
    """Why CUDA would refuse the op ``name``. ``call`` is the op that the code calls, and
    ``callers`` are the ops inside which that one calls ``name``."""
    op = name.partition(".")[0]
    caller = callers[-1].partition(".")[0] if callers else call.autograd_node
    if (op, caller) in _ONLY_ON_THE_CPU:
        return None
    if _checks_quantiles(region, call):
        return None
    if op == "aten::_local_scalar_dense":
        return _read_inside(call) if callers else _host_read(region, call)
    rule = _OPS.get(name) or _OPS.get(op)
    if rule is None or (op.startswith("aten::index_put") and region.fills_mask):
        return None
    if not rule.when(args, kwargs):
        return None
    refusal = rule.refusal
    function = _short(call.name) if callers else _function_of_library(refusal)
    if function is None or function == _short(name).removesuffix("_"):
        return refusal
    subject = f"`{function}`, which calls {refusal.subject.removesuffix(',')},"
    return refusal._replace(subject=subject, fix=_OUTSIDE)


def _function_of_library(refusal: Refusal) -> str | None:
    """The function of PyTorch that compares tensors for the user's code (``istft``)."""
    return _library_function() if refusal.code == SYNC_TRUTH_VALUE else None


def _short(name: str) -> str:
    return name.partition(".")[0].rpartition("::")[2].removeprefix("_")


def _checks_quantiles(region: CapturedRegion, call: OpCall) -> bool:
    """True for the comparison with which ``quantile`` checks its argument on the CPU alone."""
    if call.name != "aten::equal" or region.record is None:
        return False
    size = len(_QUANTILE_CHECKS)
    before = region.record.calls[max(0, call.index - size) : call.index]
    return tuple(each.name.partition(".")[0] for each in before) == _QUANTILE_CHECKS


_INSTEAD = {"normal": "use mean + std * torch.randn_like(std)"}
"""Of ops that read a value on the host: what does not."""


def _read_inside(call: OpCall) -> Refusal:
    """A read on the host in the kernel of an op."""
    name = _short(call.name)
    return Refusal(
        BOUNDS if name in _RANGES else HIDDEN_SYNC_IN_STOCK_MODULE,
        f"`{name}`, which reads a tensor value on the host,",
        "pass a Python number" if name in _RANGES else _INSTEAD.get(name, _OUTSIDE),
    )


def read_by_library(files: Iterable[str]) -> Refusal | None:
    """The read on the host of the library whose files (``/torch/...``) a traceback begins with,
    innermost first; None if the user's own code reads."""
    for name in files:
        if not name.startswith("/torch/"):
            break
        for part, refusal in _LIBRARIES.items():
            if part in name:
                return refusal
    return None


def _host_read(region: CapturedRegion, call: OpCall) -> Refusal:
    """A read on the host by an op of its own, ``call``."""
    by_library = read_by_library(file for file, _ in _running())
    if by_library is not None:
        name = call.autograd_node if by_library is _BACKWARD else None
        if by_library is _LIBRARY_FUNCTION:
            name = _library_function()
        subject = f"`{name}`, which reads a tensor value on the host,"
        return by_library._replace(subject=subject) if name else by_library
    subject = "reading a tensor value on the host (.item(), int(), float())"
    return _READS.get(region.function, Refusal(SYNC_ITEM, subject))


def _running() -> Iterator[tuple[str, str]]:
    """File and function of the running frames outside cgtool, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        name = package_part(file)
        if not name.startswith("/cgtool/") and not file.startswith("<"):
            yield name, frame.f_code.co_qualname
        frame = frame.f_back


def _library_function() -> str | None:
    """The innermost public function of PyTorch that runs; None if the user's own code does."""
    for file, function in _running():
        if not file.startswith("/torch/"):
            break
        if not function.rpartition(".")[2].startswith("_"):
            return function
    return None


def _refuse_random_branches(region: CapturedRegion, args: Sequence[Any]) -> None:
    """Random ops in a branch of torch.cond, which becomes a conditional node."""
    branches, operands = args[1:3], args[3]
    for branch in branches:
        with fake_tensor_mode()(allow_non_fake_inputs=True) as fake, _RandomOps() as random_ops:
            branch(
                *(
                    fake.from_tensor(operand) if isinstance(operand, torch.Tensor) else operand
                    for operand in operands
                )
            )
        if random_ops.names:
            region.refuse(
                CONDITIONAL_NODE_LIMITS,
                f"{random_ops.names[0]} in a branch of `torch.cond`",
                why="PyTorch: 'RNG within data-dependent conditional nodes is not supported yet'",
            )


class _RandomOps(TorchDispatchMode):
    """Names the ops that draw random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.names.append(str(schema_of(func).name))
        return call_op(func, args, kwargs or {})
