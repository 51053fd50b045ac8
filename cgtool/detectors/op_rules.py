"""Ops that CUDA refuses while a stream is capturing, mostly because they make the host wait.

Ops are looked up by name when they are dispatched, which also finds them inside libraries and in
backward. Which ops are refused and which similar ones are not was seen on an H200 with torch 2.11.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple

import torch

from cgtool.detectors.reporting import CapturedRegion
from cgtool.findings import code
from cgtool.model.finding import Code
from cgtool.observe.frames import call_op, package_part
from cgtool.observe.ops import OpCall
from cgtool.observe.tensors import on_host, tensors_of
from cgtool.torch_compat.private import TorchDispatchMode, fake_tensor_mode, schema_of

CONDITIONAL_NODE_LIMITS = code("conditional-node-limits")
HIDDEN_SYNC_IN_STOCK_MODULE = code("hidden-sync-in-stock-module")
LINALG_ERROR_CHECK = code("linalg-error-check")
NAN_GUARD_SYNC = code("nan-guard-sync")
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
_MASKS = (torch.bool, torch.uint8)


class Refusal(NamedTuple):
    """The arguments of ``CapturedRegion.refuse``."""

    code: Code
    subject: str
    fix: str | None = None


# By the name of the op without its overload.
_OPS: dict[str, Refusal] = {
    "aten::is_nonzero": Refusal(SYNC_TRUTH_VALUE, "the truth value of a tensor"),
    "aten::equal": Refusal(
        SYNC_TRUTH_VALUE, "`torch.equal`", "use (a == b).all() and read it after the replay"
    ),
    "aten::allclose": Refusal(
        SYNC_TRUTH_VALUE, "`torch.allclose`", "use torch.isclose() and read it after the replay"
    ),
    "aten::bincount": Refusal(
        SYNC_DYNAMIC_SHAPE_OP,
        "`bincount`, which reads a maximum on the host to size its output,",
        "use torch.zeros(n_bins, device=...).scatter_add_(...) with a fixed number of bins",
    ),
    "aten::multinomial": Refusal(
        HIDDEN_SYNC_IN_STOCK_MODULE,
        "`multinomial`, which checks the probabilities on the host,",
        "sample with (probabilities / torch.empty_like(probabilities).exponential_()).argmax(-1)",
    ),
    "aten::_linalg_check_errors": Refusal(
        LINALG_ERROR_CHECK, "`torch.linalg`, which reads its error code on the host,"
    ),
    "aten::linalg_eig": Refusal(
        LINALG_ERROR_CHECK,
        "`torch.linalg.eig`, which runs on the host,",
        "compute it outside the captured code",
    ),
    "aten::embedding_renorm_": Refusal(
        HIDDEN_SYNC_IN_STOCK_MODULE,
        "an embedding with `max_norm`",
        "clip the weights outside the graph",
    ),
} | {
    f"aten::{op}": Refusal(
        SYNC_DYNAMIC_SHAPE_OP, f"`{function}`, whose output shape depends on values,"
    )
    for op, function in {
        "nonzero": "nonzero",
        "masked_select": "masked_select",
        "_unique": "unique",
        "_unique2": "unique",
        "unique_dim": "unique",
        "unique_consecutive": "unique_consecutive",
        "unique_dim_consecutive": "unique_consecutive",
    }.items()
}

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
    "/torch/optim/sgd.py": Refusal(
        code("sgd-tensor-lr-sync"), "SGD with a tensor learning rate, which it reads on the host,"
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
    "/torch/autograd/": Refusal(
        HIDDEN_SYNC_IN_STOCK_MODULE,
        "anomaly detection of autograd, which reads values on the host,",
        "do not use detect_anomaly in captured code",
    ),
    "/torch/nn/": Refusal(
        HIDDEN_SYNC_IN_STOCK_MODULE,
        "a function of `torch.nn`, which reads a value on the host,",
        "replace it, or call it outside the captured code",
    ),
    "/torch/functional.py": Refusal(
        HIDDEN_SYNC_IN_STOCK_MODULE,
        "a function of `torch`, which reads a value on the host,",
        "replace it, or call it outside the captured code",
    ),
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
        _BOUNDS,
        Refusal(
            code("sync-slice-with-tensor-bounds"),
            "a tensor as a bound or size, which is read on the host,",
        ),
    ),
}


def is_host_work(args: Sequence[Any]) -> bool:
    """True for an op that has only tensors on the host, even inside a function that has others:
    ``x.view(n)`` where ``n`` is a tensor on the host."""
    tensors = list(tensors_of(args))
    return bool(tensors) and all(on_host(tensor) for tensor in tensors)


def refuse_op(
    region: CapturedRegion, call: OpCall, args: Sequence[Any], kwargs: dict[str, Any]
) -> None:
    """Report an op that CUDA would refuse; nothing outside a capture, and for tensors on the host.

    Raises CgtoolError unless the region collects.
    """
    if not region.capturing or region.on_host or is_host_work(args):
        return
    name = call.name.partition(".")[0]
    if name == "cond" and len(args) == 4:
        _refuse_random_branches(region, args)
    elif name == "aten::_local_scalar_dense":
        region.refuse(*_host_read(region.function))
    elif name in _OPS:
        region.refuse(*_OPS[name])
    elif name == "aten::repeat_interleave" and call.name.endswith(".Tensor"):
        if kwargs.get("output_size") is None:
            region.refuse(
                SYNC_DYNAMIC_SHAPE_OP,
                "`repeat_interleave` with a tensor of repeats",
                fix="pass output_size=, the total, if it is known in advance",
            )
    elif name == "aten::index" or (name.startswith("aten::index_put") and not region.fills_mask):
        indices = args[1] if len(args) > 1 else ()
        if any(
            isinstance(index, torch.Tensor) and index.dtype in _MASKS for index in indices or ()
        ):
            region.refuse(
                SYNC_DYNAMIC_SHAPE_OP if name == "aten::index" else SYNC_MASKED_ASSIGNMENT,
                "indexing with a boolean mask, whose output shape depends on values,",
                fix="use torch.where or masked_fill",
            )
    elif name == "aten::histc" and len(args) < 3 and not kwargs.keys() & {"min", "max"}:
        region.refuse(
            SYNC_DYNAMIC_SHAPE_OP, "`histc` without min and max", fix="pass min= and max="
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


def _host_read(function: Any) -> Refusal:
    """A read on the host; ``function`` is the torch function that the user called, if any."""
    by_library = read_by_library(_running_files())
    if by_library is not None:
        return by_library
    subject = "reading a tensor value on the host (.item(), int(), float())"
    return _READS.get(function, Refusal(SYNC_ITEM, subject))


def _running_files() -> Iterator[str]:
    """Files of the running frames outside cgtool, innermost first; empty for those of the user."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        name = package_part(file)
        if not name.startswith("/cgtool/") and not file.startswith("<"):
            yield name
        frame = frame.f_back


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
