"""What a stream that is capturing does not permit: host synchronisation and pageable copies.

Two places see it. Ops are looked up by name when they are dispatched, which also finds them inside
libraries and in backward. What dispatches no op of its own (``print``, ``tolist``, a copy between
host and device) is seen as the function that the user called.

Which calls are refused, and which look-alikes are not, was seen on an H200 with torch 2.11.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from cgtool.detectors.region import Region
from cgtool.detectors.syncs import sync_code
from cgtool.findings.registry import code
from cgtool.model.finding import Code, Finding
from cgtool.observe.frames import call_op, here
from cgtool.observe.ops import OpCall
from cgtool.observe.placement import HOST, on_host, place_of, tensors_of
from cgtool.torch_compat.private import TorchDispatchMode, fake_tensor_mode, schema_of

CONDITIONAL_NODE_LIMITS = code("conditional-node-limits")
H2D_PAGEABLE_COPY = code("h2d-pageable-copy")
H2D_TENSOR_FROM_PYTHON = code("h2d-tensor-from-python")
PIN_MEMORY_DURING_CAPTURE = code("pin-memory-during-capture")
RECORD_STREAM_DEFERS_REUSE = code("record-stream-defers-reuse")
SYNC_D2H_COPY = code("sync-d2h-copy")
SYNC_MASKED_ASSIGNMENT = code("sync-masked-assignment")

_KEEP = "keep the value on the device and read it after the replay"
_STATIC = (
    "keep shapes independent of values: torch.where, masked_fill, or a fixed size with padding"
)

SYNC_DYNAMIC_SHAPE_OP = code("sync-dynamic-shape-op")

# By the name of the op without its overload: the code, what it is, and what to write instead. No
# code: it depends on who asked (``sync_code``).
_OPS: dict[str, tuple[Code | None, str, str]] = {
    "aten::_local_scalar_dense": (None, "reading a value of a tensor on the host", _KEEP),
    "aten::is_nonzero": (
        code("sync-truth-value"),
        "the truth value of a tensor",
        "use torch.where",
    ),
    "aten::equal": (
        code("sync-truth-value"),
        "torch.equal()",
        "use (a == b).all() and read it after the replay",
    ),
    "aten::allclose": (
        code("sync-truth-value"),
        "torch.allclose()",
        "use torch.isclose() and read it after the replay",
    ),
    "aten::nonzero": (SYNC_DYNAMIC_SHAPE_OP, "nonzero(), whose shape depends on values,", _STATIC),
    "aten::masked_select": (
        SYNC_DYNAMIC_SHAPE_OP,
        "masked_select(), whose shape depends on values,",
        _STATIC,
    ),
    "aten::_unique": (SYNC_DYNAMIC_SHAPE_OP, "unique(), whose shape depends on values,", _STATIC),
    "aten::_unique2": (SYNC_DYNAMIC_SHAPE_OP, "unique(), whose shape depends on values,", _STATIC),
    "aten::unique_dim": (
        SYNC_DYNAMIC_SHAPE_OP,
        "unique(), whose shape depends on values,",
        _STATIC,
    ),
    "aten::unique_consecutive": (
        SYNC_DYNAMIC_SHAPE_OP,
        "unique_consecutive(), whose shape depends on values,",
        _STATIC,
    ),
    "aten::unique_dim_consecutive": (
        SYNC_DYNAMIC_SHAPE_OP,
        "unique_consecutive(), whose shape depends on values,",
        _STATIC,
    ),
    "aten::bincount": (
        SYNC_DYNAMIC_SHAPE_OP,
        "bincount(), whose shape depends on values,",
        "use torch.zeros(n).scatter_add_ with a fixed number of bins",
    ),
    "aten::multinomial": (
        code("hidden-sync-in-stock-module"),
        "multinomial(), which checks the probabilities on the host,",
        "draw with (probabilities / torch.empty_like(probabilities).exponential_()).argmax(-1)",
    ),
    "aten::_linalg_check_errors": (
        code("linalg-error-check"),
        "torch.linalg, which reads its error code on the host,",
        "use the _ex variant (solve_ex, inv_ex, cholesky_ex) with check_errors=False",
    ),
    "aten::linalg_eig": (
        code("linalg-error-check"),
        "torch.linalg.eig(), which runs on the host,",
        "compute it outside",
    ),
    "aten::embedding_renorm_": (
        code("hidden-sync-in-stock-module"),
        "an embedding with max_norm",
        "clip the weights outside the graph",
    ),
}
_MASKS = (torch.bool, torch.uint8)


def host_work(args: Sequence[Any]) -> bool:
    """True for an op on tensors of the host alone, also inside a function that is given others:
    ``x.view(n)`` with an ``n`` that is a tensor of the host."""
    tensors = list(tensors_of(args))
    return bool(tensors) and all(on_host(one) for one in tensors)


def refuse_op(region: Region, call: OpCall, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise CgtoolError when CUDA would refuse this op, during capture, on a device tensor."""
    if not region.capturing or region.on_host or host_work(args):
        return
    name = call.name.partition(".")[0]
    if name == "cond" and len(args) == 4:
        _cond(region, args)
        return
    found = _OPS.get(name)
    if found is not None:
        code, what, fix = found
        if code is None:
            code, what, fix = sync_code(region.function, what, fix)
        region.refuse(code, what, fix=fix)
    if name == "aten::repeat_interleave" and call.name.endswith(".Tensor"):
        if kwargs.get("output_size") is None:
            region.refuse(
                SYNC_DYNAMIC_SHAPE_OP,
                "repeat_interleave() with a tensor of repeats",
                fix="give it output_size=, the total that is known beforehand",
            )
    elif name == "aten::index" or (name.startswith("aten::index_put") and not region.fills_mask):
        indices = args[1] if len(args) > 1 else ()
        if any(isinstance(one, torch.Tensor) and one.dtype in _MASKS for one in indices or ()):
            region.refuse(
                SYNC_DYNAMIC_SHAPE_OP if name == "aten::index" else SYNC_MASKED_ASSIGNMENT,
                "indexing with a boolean mask, whose shape depends on values,",
                fix="use torch.where or masked_fill",
            )
    elif name == "aten::histc" and len(args) < 3 and not kwargs.keys() & {"min", "max"}:
        region.refuse(
            SYNC_DYNAMIC_SHAPE_OP, "histc() without min and max", fix="give it min= and max="
        )


def _cond(region: Region, args: Sequence[Any]) -> None:
    """Random ops in a branch of torch.cond, which becomes a conditional node."""
    branches, operands = args[1:3], args[3]
    for branch in branches:
        with fake_tensor_mode()(allow_non_fake_inputs=True) as fake, _RandomOps() as found:
            branch(
                *(
                    fake.from_tensor(one) if isinstance(one, torch.Tensor) else one
                    for one in operands
                )
            )
        if found.names:
            region.refuse(
                CONDITIONAL_NODE_LIMITS,
                f"{found.names[0]} in a branch of torch.cond",
                why="a conditional node holds no random numbers: 'RNG within data-dependent "
                "conditional nodes is not supported yet'",
                fix="draw outside torch.cond, or compute both branches and use torch.where",
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


def refuse_copy(region: Region, code: Code, what: str, fix: str) -> None:
    """A copy between the device and pageable host memory."""
    region.refuse(
        code,
        what,
        why="it copies between the device and host memory that is not pinned: CUDA answers 900, "
        "cudaErrorStreamCaptureUnsupported (newer PyTorch: 'Cannot copy between CPU and CUDA "
        "tensors during CUDA graph capture')",
        fix=fix,
    )


H2D_INDEX_WITH_LIST_OR_CPU_TENSOR = code("h2d-index-with-list-or-cpu-tensor")


def note_pinning(region: Region) -> None:
    """Pinned host memory is asked for."""
    if region.capturing:
        region.note(
            Finding(
                PIN_MEMORY_DURING_CAPTURE,
                "pinned host memory is allocated during the capture: the code that fills it runs "
                "once, and every replay copies what it holds then",
                here(2),
                phase=region.phase,
            )
        )


def note_record_stream(region: Region) -> None:
    """``Tensor.record_stream`` is called."""
    if region.capturing:
        region.note(
            Finding(
                RECORD_STREAM_DEFERS_REUSE,
                "record_stream keeps the block from being used again until the capture ends",
                here(2),
                phase=region.phase,
            )
        )


_OUTSIDE = "make it once, outside the captured code, and keep it (register_buffer in a module)"


def _self(args: Sequence[Any]) -> torch.Tensor | None:
    return args[0] if args and isinstance(args[0], torch.Tensor) else None


def _reads(code: Code, what: str) -> Callable[[Region, Sequence[Any], dict[str, Any]], None]:
    def check(region: Region, args: Sequence[Any], _kwargs: dict[str, Any]) -> None:
        tensor = _self(args)
        if tensor is not None and not on_host(tensor):
            region.refuse(code, what, fix=_KEEP)

    return check


def _index(region: Region, args: Sequence[Any], _kwargs: dict[str, Any]) -> None:
    tensor, index = args[0], args[1]
    if on_host(tensor):
        return
    parts = index if isinstance(index, tuple) else (index,)
    for one in parts:
        is_list = isinstance(one, (list, range)) or type(one).__module__ == "numpy"
        if is_list or (isinstance(one, torch.Tensor) and one.dim() > 0 and place_of(one) == HOST):
            refuse_copy(
                region,
                H2D_INDEX_WITH_LIST_OR_CPU_TENSOR,
                "indexing with a list, an array or a tensor of the host",
                _OUTSIDE,
            )
    value = args[2] if len(args) > 2 else None
    is_number = isinstance(value, (bool, int, float, complex))
    if is_number and any(
        isinstance(one, torch.Tensor) and one.dim() > 0 and one.dtype not in _MASKS for one in parts
    ):
        refuse_copy(
            region,
            H2D_INDEX_WITH_LIST_OR_CPU_TENSOR,
            "assigning a Python number through an index tensor",
            "use index_fill_, or assign a tensor that is on the device",
        )


def _from_python(region: Region, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """``torch.tensor(data, device="cuda")`` and its like; called when the result is for the GPU."""
    data = args[0] if args else kwargs.get("data", kwargs.get("obj"))
    if isinstance(data, list | tuple) and not data:
        # Nothing is copied: copy_ of no elements returns at once (aten/src/ATen/native/Copy.cpp).
        return
    if any(not on_host(one) for one in tensors_of((data,))):
        return
    refuse_copy(
        region,
        H2D_TENSOR_FROM_PYTHON,
        "making a device tensor from Python or NumPy data",
        _OUTSIDE,
    )


def _new_tensor(region: Region, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    if not on_host(args[0]):
        _from_python(region, args[1:], kwargs)


def _copy_in_place(region: Region, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    target, source = args[0], args[1] if len(args) > 1 else kwargs.get("src")
    if isinstance(source, torch.Tensor) and on_host(target) != on_host(source):
        host = target if on_host(target) else source
        if place_of(host) == HOST:
            refuse_copy(
                region,
                SYNC_D2H_COPY if host is target else H2D_PAGEABLE_COPY,
                "copy_() between host and device",
                "copy outside the graph, before or after the replay; or keep a pinned buffer",
            )


FUNCTIONS: dict[Any, Callable[[Region, Sequence[Any], dict[str, Any]], None]] = {
    torch.Tensor.tolist: _reads(code("sync-item"), "Tensor.tolist()"),
    torch.Tensor.numpy: _reads(code("sync-item"), "Tensor.numpy()"),
    torch.Tensor.__array__: _reads(code("sync-item"), "numpy.asarray() of a tensor"),
    torch.Tensor.__repr__: _reads(code("sync-print-or-format"), "printing a tensor"),
    torch.Tensor.__format__: _reads(code("sync-print-or-format"), "printing a tensor"),
    torch.Tensor.__getitem__: _index,
    torch.Tensor.__setitem__: _index,
    torch.Tensor.copy_: _copy_in_place,
    torch.Tensor.new_tensor: _new_tensor,
}
"""Called with the arguments before the function itself, while a capture is on."""

FROM_PYTHON = frozenset((torch.tensor, torch.as_tensor, torch.asarray))
"""Checked with ``refuse_from_python`` when the result is wanted on the GPU."""

refuse_from_python = _from_python
