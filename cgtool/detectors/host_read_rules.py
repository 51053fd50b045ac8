"""Functions that read a value of the device on the host: those of libraries, and those that the
user calls."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from cgtool.detectors.op_rules import (
    LINALG_ERROR_CHECK,
    OUTSIDE,
    SYNC_ITEM,
    SYNC_TRUTH_VALUE,
    Refusal,
)
from cgtool.findings import code
from cgtool.observe.frames import callers, is_calling, locals_of, package_part, position_of
from cgtool.observe.ops import OpCall
from cgtool.observe.source import called_at

BOUNDS = code("sync-slice-with-tensor-bounds")
HIDDEN_SYNC_IN_STOCK_MODULE = code("hidden-sync-in-stock-module")
NAN_GUARD_SYNC = code("nan-guard-sync")
SYNC_PRINT_OR_FORMAT = code("sync-print-or-format")

_RANGES = ("arange", "range")
"""Functions with a result whose length depends on the values."""
_ENDS = ("linspace", "logspace")
_SORTED = "use `torch.stack` and `sort` or `topk`, which stay on the device"
_STEPS = "torch.linspace(0, 1, steps, device=...)"
_MASKED = (
    "compute with all elements, whose number is fixed, and select with "
    "`torch.where(mask, x, other)` or `masked_fill`, where `other` has no effect on the result"
)
_DENSE = "keep the tensor dense, with its zeros; or convert it once, outside the captured code"
INSTEAD = {
    **{
        name: f"use `torch.{name}`, which stays on the device"
        for name in vars(math)
        if callable(getattr(torch, name, None))
    },
    **dict.fromkeys(_RANGES, "pass a Python number"),
    "linspace": f"compute it on the device: start + (end - start) * {_STEPS}",
    "logspace": f"compute it on the device: base ** (start + (end - start) * {_STEPS})",
    "cov": "subtract the means, and multiply: `x @ x.T / (x.shape[1] - 1)`",
    "corrcoef": "subtract the means, divide the rows by their norms, and multiply: `x @ x.T`",
    # FakeQuantPerChannelAffine.cpp: the range of integers alone is checked.
    "fake_quantize_per_channel_affine_cachemask": (
        "pass the zero points as floating-point numbers, whose range is not read on the host: "
        "`zero_point.float()`"
    ),
    # TensorCompare.cpp, isin_sorting
    "isin": (
        "pass assume_unique=True if all values of each tensor differ, else compare with all of "
        "them: `(x[..., None] == values).any(-1)`"
    ),
    "nested_tensor_from_mask_left_aligned": (
        "construct the `TransformerEncoder` with enable_nested_tensor=False"
    ),
    "one_hot": "pass num_classes, the number of classes, as a Python number",
    "MultivariateNormal": (
        "pass scale_tril=torch.linalg.cholesky_ex(covariance_matrix).L; the covariance of a "
        "precision matrix is `torch.linalg.inv_ex(precision_matrix).inverse`"
    ),
    "normal": "use mean + std * torch.randn_like(std)",
    # SegmentReduce.cpp: what it reads are the lengths, to check them.
    "segment_reduce": "pass unsafe=True, which leaves out the check of the lengths",
    **dict.fromkeys(("where", "argwhere"), _MASKED),
    **dict.fromkeys(
        ("to_sparse", *(f"to_sparse_{layout}" for layout in ("csr", "csc", "bsr", "bsc"))), _DENSE
    ),
    "linalg_matrix_power": (
        "invert with `torch.linalg.inv_ex` and check_errors=False, and raise the inverse to the "
        "positive power"
    ),
    # Of Python.
    **dict.fromkeys(("sorted", "sort", "nlargest", "nsmallest", "heappush", "heapify"), _SORTED),
    "max": "use `torch.maximum`, or `torch.stack` and `amax`, which stay on the device",
    "min": "use `torch.minimum`, or `torch.stack` and `amin`, which stay on the device",
    **dict.fromkeys(
        ("median", "median_low", "median_high"),
        "use `torch.stack` and `median`, which stay on the device",
    ),
    **dict.fromkeys(
        ("any", "all"), "use `torch.stack` and `any` or `all`, and select with `torch.where`"
    ),
    **dict.fromkeys(
        ("bisect", "bisect_left", "bisect_right", "insort"),
        "use `torch.searchsorted` or `torch.bucketize`, which stay on the device",
    ),
    **dict.fromkeys(
        ("index", "count", "remove"),
        "compare on the device, and select with `torch.where`",
    ),
    "choices": "use `torch.multinomial` with the weights, and select by its result on the device",
}
"""The fix for a function that reads a value on the host, or the size of its result, by its
name."""

_BOUNDS = {
    torch.Tensor.__getitem__, torch.Tensor.__setitem__, torch.arange,
    torch.narrow, torch.Tensor.narrow, torch.split, torch.Tensor.split, torch.full, torch.zeros,
    torch.Tensor.expand, torch.Tensor.view, torch.Tensor.reshape, torch.Tensor.__index__,
    torch.chunk, torch.Tensor.chunk, torch.Tensor.repeat, torch.nn.functional.pad,
}  # fmt: skip
_BACKWARD = Refusal(
    HIDDEN_SYNC_IN_STOCK_MODULE,
    "backward, which reads a tensor value on the host,",
    "use functions whose backward reads no value on the host (instead of `x.prod(dim)`, multiply "
    "the tensors of `x.unbind(dim)`; instead of `cumprod`, take the exponential of a `cumsum` of "
    "logarithms)",
)
_ANOMALY = Refusal(
    NAN_GUARD_SYNC,
    "`detect_anomaly`, which looks for NaN in every gradient on the host,",
    "turn it off, or pass check_nan=False",
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
    f"replace it, or {OUTSIDE}",
)
_VALIDATION = Refusal(
    HIDDEN_SYNC_IN_STOCK_MODULE,
    "`torch.distributions`, which checks its arguments on the host,",
    "construct the distribution with validate_args=False",
)
_DISTRIBUTION = Refusal(
    HIDDEN_SYNC_IN_STOCK_MODULE,
    "`torch.distributions`, which reads a tensor value on the host,",
    f"{OUTSIDE}, and `copy_()` the result into a static tensor before the replay",
)
_LIBRARIES: dict[str, Refusal] = {
    "/torch/_tensor_str.py": Refusal(SYNC_PRINT_OR_FORMAT, "printing a tensor"),
    "/torch/amp/grad_scaler.py": Refusal(
        NAN_GUARD_SYNC, "`GradScaler`, which reads `found_inf` on the host,"
    ),
    "/torch/nn/utils/clip_grad.py": Refusal(
        NAN_GUARD_SYNC,
        "`error_if_nonfinite=True`, which reads the norm on the host,",
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
    "/torch/optim/lr_scheduler.py": Refusal(
        HIDDEN_SYNC_IN_STOCK_MODULE,
        "the scheduler, which reads the loss on the host,",
        "call its `step()` after the replay",
    ),
    "/torch/optim/swa_utils.py": Refusal(
        HIDDEN_SYNC_IN_STOCK_MODULE,
        "`AveragedModel`, which reads its counter on the host,",
        "update the averages after the replay",
    ),
    "/torch/optim/": Refusal(
        code("optimizer-not-capturable"), "the optimizer, which reads its state on the host,"
    ),
    **{
        f"/torch/distributions/{name}.py": _VALIDATION
        for name in ("distribution", "constraints", "geometric", "continuous_bernoulli")
    },
    "/torch/distributions/": _DISTRIBUTION,
    "/torch/nn/modules/batchnorm.py": Refusal(
        HIDDEN_SYNC_IN_STOCK_MODULE,
        "batch norm with momentum=None, which reads its counter on the host,",
        "give it a fixed momentum",
    ),
    "/torch/_higher_order_ops/": Refusal(
        code("conditional-node-limits"),
        "`torch.cond` or `while_loop`, which reads its condition on the host,",
        "compute both branches and select with torch.where; give a loop a fixed number of steps",
    ),
    "/torch/autograd/": _BACKWARD,
    "/torch/nn/modules/transformer.py": Refusal(
        HIDDEN_SYNC_IN_STOCK_MODULE,
        "a mask that the transformer compares with a causal one on the host",
        "pass is_causal=True or is_causal=False",
    ),
    "/torch/nn/modules/container.py": Refusal(
        SYNC_ITEM,
        "a tensor as the index of a layer, which is read on the host,",
        "choose the layer by a Python number, or compute all layers and select with torch.where",
    ),
    "/torch/nn/": _LIBRARY_FUNCTION,
    "/torch/functional.py": _LIBRARY_FUNCTION,
    "/torch/_linalg_utils.py": Refusal(
        LINALG_ERROR_CHECK, "`torch.linalg`, which reads its error code on the host,"
    ),
}
"""By a part of the file name of the innermost frame; in order."""

READ = Refusal(SYNC_ITEM, "reading a tensor value on the host (.item(), int(), float())")
_TRUTH = Refusal(SYNC_TRUTH_VALUE, "the truth value of a tensor (if, while, assert, bool())")
_CONVERSIONS = ("item", "int", "float", "bool", "complex", "is_nonzero")
READS: dict[Any, Refusal] = {
    **dict.fromkeys((torch.Tensor.__bool__, torch.is_nonzero), _TRUTH),
    torch.Tensor.__contains__: Refusal(
        SYNC_TRUTH_VALUE,
        "`in` with a tensor, which reads on the host whether any element is equal,",
        "compare on the device, `(x == value).any()`, and select with `torch.where`",
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
    torch.Tensor.__index__: Refusal(
        BOUNDS,
        "a tensor as a bound, size or index, which is read on the host,",
        "instead of a slice, compare positions with the bound on the device and mask; instead of "
        "an item of a list, stack what the list holds and select by "
        "stacked.index_select(0, index.view(1))",
    ),
    torch.full: Refusal(
        SYNC_ITEM,
        "`torch.full` with a tensor as size or value, which is read on the host,",
        "fill with a tensor by torch.empty(...).fill_(value)",
    ),
}
"""By the function of PyTorch that the user calls."""
COMPARING: dict[Any, str] = {
    torch.istft: "istft",
    **dict.fromkeys((torch.cov, torch.Tensor.cov), "cov"),
    **dict.fromkeys((torch.corrcoef, torch.Tensor.corrcoef), "corrcoef"),
}
"""Functions in C++ that call `torch.equal` to check their arguments, and their names."""

_CALLS_A_MODULE = "/torch/nn/modules/module.py"


def read_by_library(files: Iterable[str]) -> Refusal | None:
    """The read on the host of the library whose files (``/torch/...``) a traceback begins with,
    innermost first; None if the user's own code reads."""
    for name in itertools.takewhile(_is_of_torch, files):
        for part, refusal in _LIBRARIES.items():
            if part in name:
                return refusal
    return None


def read_by_code(function: Any, call: OpCall) -> Refusal:
    """The read on the host of the running code: ``function`` is the outermost function of PyTorch,
    ``call`` the op that reads."""
    by_library = read_by_library(file for file, _ in _running())
    if call.autograd_node is not None and next(_running_frames(), None) is None:
        # On a GPU, backward runs on a thread that has no frame.
        by_library = _BACKWARD
    if by_library is None:
        return _named(READS.get(function, READ), call)
    name = None
    if by_library is _BACKWARD:
        if torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled():
            return _ANOMALY
        name = call.autograd_node
    if by_library is _VALIDATION:
        return _checked_inside() or by_library
    if by_library is _DISTRIBUTION or by_library is _LIBRARY_FUNCTION:
        name = library_function()
    return by_library._replace(subject=_reads(name)) if name else by_library


def _named(refusal: Refusal, call: OpCall) -> Refusal:
    """The refusal of a read with the name of the function that reads: one in C has no frame."""
    name = called_by_code(call)
    if refusal is READ and name not in ("", *_CONVERSIONS):
        reads = "reads a tensor value"
    elif refusal is _TRUTH and name in INSTEAD:
        reads = "takes the truth value of a tensor"
    else:
        return refusal
    return refusal._replace(subject=f"`{name}`, which {reads} on the host,", fix=INSTEAD.get(name))


def called_by_code(call: OpCall) -> str:
    """The function that the innermost line of the user's calls, for messages; "" if unknown."""
    is_known = bool(call.chain) and is_calling(call.chain[0])
    return called_at(position_of(call.chain[0])) if is_known else ""


def _checked_inside() -> Refusal | None:
    """The check of a distribution that another one uses."""
    kind = torch.distributions.Distribution
    frames = itertools.takewhile(
        lambda frame: _is_of_torch(package_part(frame.f_code.co_filename)), _running_frames()
    )
    owners = [locals_of(frame).get("self") for frame in frames]
    checked = [type(owner).__name__ for owner in owners if isinstance(owner, kind)]
    if not checked or checked[0] == checked[-1]:
        return None
    return _VALIDATION._replace(
        subject=f"`{checked[0]}` inside `{checked[-1]}`, which checks its arguments on the host,",
        fix=f"construct the `{checked[0]}` with validate_args=False; where `{checked[-1]}` "
        "constructs it, call torch.distributions.Distribution.set_default_validate_args(False) "
        "first",
    )


def read_in_kernel(op: str) -> Refusal:
    """The read on the host in the kernel of an op."""
    read_code = HIDDEN_SYNC_IN_STOCK_MODULE
    if op in (*_RANGES, *_ENDS):
        read_code = BOUNDS if op in _RANGES else SYNC_ITEM
    return Refusal(read_code, _reads(op), INSTEAD.get(op, OUTSIDE))


def _reads(function: str) -> str:
    return f"`{function}`, which reads a tensor value on the host,"


def library_function() -> str | None:
    """The innermost public function of PyTorch that runs; None if the user's own code does."""
    running = [
        (file, name)
        for file, name in itertools.takewhile(lambda frame: _is_of_torch(frame[0]), _running())
        # The first wraps the calls of TorchScript, the other has what all distributions call.
        if not file.startswith(("/torch/testing/", "/torch/distributions/utils.py"))
    ]
    if running and running[0][0] == _CALLS_A_MODULE:
        return "TorchScript"  # which has no frames
    names = (name.removesuffix(".__init__") for _, name in running if "<locals>" not in name)
    return next((name for name in names if not name.rpartition(".")[2].startswith("_")), None)


def _is_of_torch(file: str) -> bool:
    return file.startswith("/torch/")


def _running() -> Iterator[tuple[str, str]]:
    """File and function of ``_running_frames``."""
    for frame in _running_frames():
        yield package_part(frame.f_code.co_filename), frame.f_code.co_qualname


def _running_frames() -> Iterator[types.FrameType]:
    """The running frames outside cgtool and its context managers, innermost first."""
    for frame in callers(sys._getframe(1)):
        file = frame.f_code.co_filename
        is_own = package_part(file).startswith("/cgtool/") or file == contextlib.__file__
        if not is_own and not file.startswith("<"):
            yield frame
