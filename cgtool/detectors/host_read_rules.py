"""Who reads a value of the device on the host: a library, or a function that the user calls."""

from __future__ import annotations

import ast
import contextlib
import inspect
import itertools
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from cgtool.detectors.number_arguments import may_get_tensor_for_number, takes_numbers
from cgtool.detectors.op_rules import (
    LINALG_ERROR_CHECK,
    OUTSIDE,
    SYNC_ITEM,
    SYNC_TRUTH_VALUE,
    Refusal,
)
from cgtool.detectors.replacements import RANGES, instead_of
from cgtool.findings import code
from cgtool.observe.frames import (
    callers,
    is_calling,
    is_internal,
    is_subscript,
    locals_of,
    package_part,
    position_of,
)
from cgtool.observe.ops import OpCall
from cgtool.observe.source import Position, call_at, called_at, nodes_around, slices_at
from cgtool.observe.tensors import on_host, tensors_in

BOUNDS = code("sync-slice-with-tensor-bounds")
HIDDEN_SYNC_IN_STOCK_MODULE = code("hidden-sync-in-stock-module")
NAN_GUARD_SYNC = code("nan-guard-sync")
SYNC_PRINT_OR_FORMAT = code("sync-print-or-format")

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
READS: dict[Any, Refusal] = {
    **dict.fromkeys(
        (torch.Tensor.__bool__, torch.is_nonzero),
        Refusal(SYNC_TRUTH_VALUE, "the truth value of a tensor (if, while, assert, bool())"),
    ),
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
        BOUNDS, "a tensor as a bound, size or index, which is read on the host,"
    ),
    torch.full: Refusal(
        SYNC_ITEM,
        "`torch.full` with a tensor as size or value, which is read on the host,",
        "fill with a tensor by torch.empty(...).fill_(value)",
    ),
}
"""By the function of PyTorch that the user calls."""


_SORTED = "`torch.stack` and `sort` or `topk`, which stay on the device"
_ASKED = ("any", "all")
"""Functions that take the truth value of what they get; the others compare it."""
_ON_THE_DEVICE = {
    **dict.fromkeys(("sorted", "sort", "nlargest", "nsmallest", "heappush", "heapify"), _SORTED),
    "max": "`torch.maximum`, or `torch.stack` and `amax`, which stay on the device",
    "min": "`torch.minimum`, or `torch.stack` and `amin`, which stay on the device",
    **dict.fromkeys(
        ("median", "median_low", "median_high"),
        "`torch.stack` and `median`, which stay on the device",
    ),
    **dict.fromkeys(_ASKED, "`torch.stack` and `any` or `all`, and select with `torch.where`"),
    **dict.fromkeys(
        ("bisect", "bisect_left", "bisect_right", "insort"),
        "`torch.searchsorted` or `torch.bucketize`, which stay on the device",
    ),
    **dict.fromkeys(
        ("index", "count", "remove"),
        "a comparison on the device, and select with `torch.where`",
    ),
    "choices": "`torch.multinomial` with the weights, and select with its result on the device",
    "isclose": "`torch.isclose`, and select with `torch.where`",
}
"""By the name of a function of Python's own that compares or converts what it gets."""
_ENDS = ("linspace", "logspace")
_CALLS_A_MODULE = "/torch/nn/modules/module.py"


def read_by_library(files: Iterable[str]) -> Refusal | None:
    """The read on the host of the library whose files (``/torch/...``) a traceback begins with,
    innermost first; None if the user's own code reads."""
    for name in itertools.takewhile(_is_of_torch, files):
        for part, refusal in _LIBRARIES.items():
            if part in name:
                return refusal
    return None


def read_by_code(function: Any, autograd_node: str | None) -> Refusal:
    """The read on the host of the running code: ``function`` is the outermost function of PyTorch,
    ``autograd_node`` the node of which it runs the backward."""
    by_library = read_by_library(file for file, _ in _running())
    if autograd_node is not None and next(_running_frames(), None) is None:
        # On a GPU, backward runs on a thread that has no frame.
        by_library = _BACKWARD
    if by_library is None:
        return READS.get(function, READ)
    name = None
    if by_library is _BACKWARD:
        if torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled():
            return _ANOMALY
        name = autograd_node
    if by_library is _VALIDATION:
        return _checked_inside() or by_library
    if by_library is _DISTRIBUTION or by_library is _LIBRARY_FUNCTION:
        name = library_function()
    argument = _tensor_for_number(name) if by_library is _LIBRARY_FUNCTION and name else None
    if argument is not None:
        by_library = by_library._replace(fix=_pass_a_number(f" in `{argument}`"))
    return by_library._replace(subject=_reads(name)) if name else by_library


def inside_python(refusal: Refusal, call: OpCall) -> Refusal:
    """The refusal of a read in a function of Python's own, or in one of PyTorch's in C++, which the
    user's line calls: it names that function, and what to use instead."""
    if refusal is READS[torch.Tensor.__index__] and call.chain and is_subscript(call.chain[0]):
        is_slice = slices_at(position_of(call.chain[0]))
        return refusal if is_slice else refusal._replace(fix=_FIX_OF_LIST)
    node = call_at(position_of(call.chain[0])) if call.chain and is_calling(call.chain[0]) else None
    if node is None or refusal.code not in (SYNC_ITEM, SYNC_TRUTH_VALUE):
        return refusal
    name = called_at(position_of(call.chain[0]))
    running = next(_running_frames(), None)
    is_written = running is not None and not is_internal(running.f_code)
    if refusal is READ and running is not None and is_written and takes_numbers(node):
        if not may_get_tensor_for_number(node, running):
            return read_in_kernel(name)
        called = ast.unparse(node.func)
        return refusal._replace(
            subject=f"`{called}` with a tensor in place of a number, which is read on the host,",
            fix=f"use `torch.{name}`, which stays on the device"
            if called == f"math.{name}"
            else _pass_a_number(),
        )
    if refusal is READ and name != "int" and _is_operand(position_of(call.chain[0])):
        return refusal._replace(fix=_FIX_OF_OPERAND)
    # Those in C have no frame.
    if name not in _ON_THE_DEVICE if is_written else running is None or not _is_pythons(running):
        return refusal
    reads = "reads a tensor value"
    if refusal.code == SYNC_TRUTH_VALUE:
        is_asked = name in _ASKED
        reads = "takes the truth value of each tensor" if is_asked else "compares tensors"
    instead = _ON_THE_DEVICE.get(name)
    fix = f"use {instead}" if instead is not None else f"use ops of PyTorch instead, or {OUTSIDE}"
    return refusal._replace(
        subject=f"`{ast.unparse(node.func)}`, which {reads} on the host,", fix=fix
    )


_FIX_OF_LIST = (
    "stack what the list holds in one tensor, padded to one length, and index that: "
    "`stacked.index_select(0, index.view(1))`"
)
_FIX_OF_OPERAND = (
    "leave out the conversion: arithmetic takes the tensor, and stays on the device; read the "
    "value after the replay"
)
_COMPUTED = ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return


def _is_arithmetic(node: ast.AST) -> bool:
    """Of numbers: `"%f" % loss` and `[0] * n` are not."""
    if isinstance(node, ast.BinOp):
        others = ast.JoinedStr | ast.List | ast.Tuple
        return not any(
            isinstance(part, others)
            or (isinstance(part, ast.Constant) and isinstance(part.value, str))
            for part in (node.left, node.right)
        )
    return isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not)


def _is_operand(position: Position) -> bool:
    """Whether arithmetic is all that the code does with a number."""
    around = nodes_around(position)
    inner = [*itertools.takewhile(_is_arithmetic, around)]
    statement = next(iter(around[len(inner) :]), None)
    is_number = any(isinstance(node, ast.BinOp) for node in inner)
    match statement:
        case ast.Assign([ast.Name(name)]):
            function = next((x for x in around if isinstance(x, ast.FunctionDef)), None)
            nodes = [] if function is None else [*ast.walk(function)]
            operands = {
                id(part)
                for node in nodes
                if isinstance(node, ast.BinOp) and _is_arithmetic(node)
                for part in (node.left, node.right)
            }
            reads = [x for x in nodes if isinstance(x, ast.Name) and x.id == name]
            reads = [x for x in reads if isinstance(x.ctx, ast.Load)]
            return bool(reads) and all(id(each) in operands for each in reads)
    return is_number and isinstance(statement, _COMPUTED)


def _pass_a_number(argument: str = "") -> str:
    return (
        f"pass a Python number{argument}, or use ops that take a tensor in its place (arithmetic, "
        "`torch.where`)"
    )


def _is_pythons(frame: types.FrameType) -> bool:
    file = frame.f_code.co_filename
    return is_internal(frame.f_code) and not package_part(file)


def _tensor_for_number(function: str) -> str | None:
    """The only argument of the running function of PyTorch that is, or has in it, a tensor without
    dimensions, beside a tensor that has some."""
    frame = next((each for each in _running_frames() if each.f_code.co_qualname == function), None)
    if frame is None:
        return None
    code, values = frame.f_code, locals_of(frame)
    dimensions = {
        name: {each.dim() for each in tensors_in(values.get(name)) if not on_host(each)}
        for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    }
    numbers = [name for name, each in dimensions.items() if each == {0}]
    has_others = any(max(each, default=0) for each in dimensions.values())
    return numbers[0] if len(numbers) == 1 and has_others else None


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
    if op in (*RANGES, *_ENDS):
        read_code = BOUNDS if op in RANGES else SYNC_ITEM
    return Refusal(read_code, _reads(op), instead_of(op))


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
