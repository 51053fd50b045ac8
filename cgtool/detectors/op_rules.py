"""Ops that CUDA refuses while a stream is capturing, mostly because they make the host wait.

Each rule has an entry in tests/corpus/entries/refused_ops.py, which an H200 refused with torch
2.11: if ``benchmarks/corpus.py --truth`` captures it, the rule is out of date.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from cgtool.findings import code
from cgtool.model.finding import Code
from cgtool.observe.tensors import on_host
from cgtool.torch_compat.dispatch_keys import Kwargs
from cgtool.torch_compat.private import sparse_indices

H2D_PAGEABLE_COPY = code("h2d-pageable-copy")
LINALG_ERROR_CHECK = code("linalg-error-check")
SYNC_D2H_COPY = code("sync-d2h-copy")
SYNC_DYNAMIC_SHAPE_OP = code("sync-dynamic-shape-op")
SYNC_ITEM = code("sync-item")
SYNC_MASKED_ASSIGNMENT = code("sync-masked-assignment")
SYNC_TRUTH_VALUE = code("sync-truth-value")

OUTSIDE = "call it outside the captured code"
_COMPUTE_OUTSIDE = "compute it outside the captured code"
_MASKS = (torch.bool, torch.uint8)


class Refusal(NamedTuple):
    """A call that CUDA does not permit in a capture."""

    code: Code
    subject: str
    """The subject of the sentence "`torch.equal` is not permitted ..."."""
    fix: str | None = None
    when: Callable[[Sequence[Any], Kwargs], bool] = lambda _args, _kwargs: True
    """Whether CUDA refuses a call with these arguments."""
    in_backward: tuple[str, str] | None = None
    """The subject and the fix where autograd calls it."""


def _argument(args: Sequence[Any], kwargs: Kwargs, place: int, name: str, default: Any) -> Any:
    return args[place] if len(args) > place else kwargs.get(name, default)


def _has_elements(args: Sequence[Any], _kwargs: Kwargs) -> bool:
    return bool(args[0].numel())


def _is_filled_on_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and bool(value.numel()) and not on_host(value)


def _compares_values(args: Sequence[Any], _kwargs: Kwargs) -> bool:
    # cuda_equal (cuda/Equal.cpp) answers at once where sizes differ or nothing is to be compared.
    return bool(args[0].shape == args[1].shape and args[0].numel())


def _indexes_with_mask(args: Sequence[Any], kwargs: Kwargs) -> bool:
    # expandTensors (IndexingUtils.h) finds the ones of a host's mask on the host, and copies them
    # from pinned memory.
    indices = _argument(args, kwargs, 1, "indices", ())
    return any(
        isinstance(index, torch.Tensor) and index.dtype in _MASKS and not on_host(index)
        for index in indices
    )


def _puts_with_mask(args: Sequence[Any], kwargs: Kwargs) -> bool:
    # canDispatchToMaskedFill (TensorAdvancedIndexing.cpp): a number of the host is filled in.
    value, accumulate = args[2], _argument(args, kwargs, 3, "accumulate", False)
    fills = value.numel() == 1 and on_host(value) and not accumulate
    return not fills and _indexes_with_mask(args, kwargs)


def _has_no_range(args: Sequence[Any], kwargs: Kwargs) -> bool:
    low, high = _argument(args, kwargs, 2, "min", 0), _argument(args, kwargs, 3, "max", 0)
    return bool(low == high and args[0].numel())


def _is_rectangular(args: Sequence[Any], _kwargs: Kwargs) -> bool:
    return bool(args[0].numel() and args[0].shape[-1] != args[0].shape[-2])


def _has_norms(args: Sequence[Any], _kwargs: Kwargs) -> bool:
    return bool(args[0].numel() and args[0].shape[-1] > 1)


def _multiplies_uncoalesced(args: Sequence[Any], _kwargs: Kwargs) -> bool:
    return any(
        matrix.is_sparse and not matrix.is_coalesced() and sparse_indices(matrix).shape[1] > 1
        for matrix in args[-2:]
        if isinstance(matrix, torch.Tensor)
    )


_PUTS = ("aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
INDEXING = ("aten::index", *_PUTS)
"""Each of them has others in its backward, for what the code wrote."""
_BY_MASK = "indexing with a boolean mask, whose output shape depends on values,"
_PUT_BY_MASK = Refusal(
    SYNC_MASKED_ASSIGNMENT,
    _BY_MASK,
    # masked_fill would read the value on the host.
    "use torch.where(mask, values, x), with values of the shape of x, or one for all; if there is "
    "one for each True element, x.masked_scatter_(mask, values)",
    _puts_with_mask,
)


# TensorShape.cpp, sparse_transpose_: the result counts as not coalesced.
_TRANSPOSED = (
    "`mm` in backward with the transpose of a sparse matrix, whose distinct indices it counts on "
    "the host,",
    "use a dense matrix, or `index_add_` with the rows, columns and values of the sparse one: "
    "`torch.zeros(...).index_add_(0, rows, values[:, None] * x.index_select(0, columns))`",
)


def _dynamic(function: str) -> Refusal:
    return Refusal(SYNC_DYNAMIC_SHAPE_OP, f"`{function}`, whose output shape depends on values,")


OPS: dict[str, Refusal] = {
    "aten::is_nonzero": Refusal(SYNC_TRUTH_VALUE, "the truth value of a tensor"),
    "aten::equal": Refusal(
        SYNC_TRUTH_VALUE,
        "`torch.equal`",
        "use (a == b).all() and read it after the replay",
        when=_compares_values,
    ),
    "aten::allclose": Refusal(
        SYNC_TRUTH_VALUE, "`torch.allclose`", "use torch.isclose() and read it after the replay"
    ),
    "aten::bincount": Refusal(
        SYNC_DYNAMIC_SHAPE_OP,
        "`bincount`, which reads a maximum on the host to size its output,",
        "use torch.zeros(n_bins, device=...).scatter_add_(...) with a fixed number of bins",
    ),
    # cuda/SummaryOps.cu, _histc_cuda_template
    "aten::histc": Refusal(
        SYNC_D2H_COPY,
        "`histc` with equal min and max, which copies the smallest and largest value to the host,",
        "pass different min= and max=",
        when=_has_no_range,
    ),
    # BucketizationUtils.h, searchsorted_pre_check
    "aten::searchsorted": Refusal(
        SYNC_ITEM,
        "`searchsorted` with a sorter, whose smallest and largest index it reads on the host,",
        "gather the sequence in sorted order first, and call it without a sorter",
        when=lambda _args, kwargs: _is_filled_on_device(kwargs.get("sorter")),
    ),
    # cuda/LossCTC.cu, ctc_loss_gpu_template; function_rules has a rule for lengths on the device.
    "aten::_ctc_loss": Refusal(
        H2D_PAGEABLE_COPY,
        "`ctc_loss`, which copies its lengths to the device,",
        _COMPUTE_OUTSIDE,
    ),
    "aten::_linalg_check_errors": Refusal(
        LINALG_ERROR_CHECK,
        "`torch.linalg`, which reads its error code on the host,",
        when=_has_elements,
    ),
    # cuda/linalg/BatchLinearAlgebra.cpp, lu_factor: cuBLAS takes square matrices only, and MAGMA
    # waits for its own stream.
    "aten::linalg_lu_factor_ex": Refusal(
        LINALG_ERROR_CHECK,
        "an LU factorization of matrices that are not square, for which MAGMA waits on the host,",
        _COMPUTE_OUTSIDE,
        when=_is_rectangular,
    ),
    # cuda/linalg/BatchLinearAlgebraLib.cpp, ldl_factor_cusolver
    "aten::linalg_ldl_factor_ex": Refusal(
        LINALG_ERROR_CHECK,
        "`ldl_factor`, whose function of cuSOLVER (sytrf) does not run in a capture,",
        _COMPUTE_OUTSIDE,
        when=_has_elements,
    ),
    # CUDAFunctions: cusolverDnXgeev needs its workspace on the host too.
    **dict.fromkeys(
        ("aten::linalg_eig", "aten::_linalg_eigvals"),
        Refusal(
            LINALG_ERROR_CHECK,
            "`torch.linalg.eig`, part of which runs on the host,",
            _COMPUTE_OUTSIDE,
            when=_has_elements,
        ),
    ),
    # LinearAlgebra.cpp, mexp_impl; a matrix of one element has no norm.
    "aten::linalg_matrix_exp": Refusal(
        SYNC_D2H_COPY,
        "`matrix_exp`, which copies the norms of the matrices to the host,",
        _COMPUTE_OUTSIDE,
        when=_has_norms,
    ),
    # sparse/cuda/SparseCUDATensor.cu, _coalesce_sparse_cuda: thrust counts the distinct indices.
    "aten::_coalesce": Refusal(
        SYNC_DYNAMIC_SHAPE_OP,
        "`coalesce`, which counts the distinct indices on the host,",
        "coalesce the indices once, outside the captured code, and add the values with "
        "`index_add_`; of an embedding, use a dense gradient (`sparse=False`)",
        when=lambda args, _kwargs: sparse_indices(args[0]).shape[1] > 1,
    ),
    # sparse/cuda/SoftMax.cu, compute_pool_max
    **dict.fromkeys(
        ("aten::_sparse_softmax", "aten::_sparse_log_softmax"),
        Refusal(
            SYNC_DYNAMIC_SHAPE_OP,
            "softmax of a sparse tensor, which counts the rows with values on the host,",
            "use scatter_reduce and index_add_ with the indices",
        ),
    ),
    # sparse/cuda/SparseCUDATensorMath.cu, s_addmm_out_sparse_dense_cuda
    **dict.fromkeys(
        ("aten::mm", "aten::addmm", "aten::addmm_"),
        Refusal(
            SYNC_DYNAMIC_SHAPE_OP,
            "`mm` with a sparse tensor that is not coalesced, whose distinct indices it counts on "
            "the host,",
            "coalesce the tensor once, outside the captured code, or use index_add_",
            when=_multiplies_uncoalesced,
            in_backward=_TRANSPOSED,
        ),
    ),
    # cuda/Indexing.cu, masked_fill__cuda
    "aten::masked_fill_.Tensor": Refusal(
        SYNC_ITEM,
        "`masked_fill` with a tensor as value, which is read on the host,",
        "use torch.where(mask, value, x)",
        when=lambda args, _kwargs: not on_host(args[2]),
    ),
    # cuda/Distributions.cpp, bernoulli_tensor_cuda_kernel
    "aten::bernoulli_.Tensor": Refusal(
        H2D_PAGEABLE_COPY,
        "`bernoulli_` with probabilities on the CPU, which it copies to the device,",
        "create the probabilities on the device, once",
        when=lambda args, _kwargs: on_host(args[1]),
    ),
    "aten::repeat_interleave.Tensor": Refusal(
        SYNC_DYNAMIC_SHAPE_OP,
        "`repeat_interleave` with a tensor of repeats",
        "pass output_size=, the total, if it is known in advance",
        when=lambda _args, kwargs: kwargs.get("output_size") is None,
    ),
    "aten::index": Refusal(
        SYNC_DYNAMIC_SHAPE_OP, _BY_MASK, "use torch.where or masked_fill", _indexes_with_mask
    ),
    **dict.fromkeys(_PUTS, _PUT_BY_MASK),
    "aten::nonzero": _dynamic("nonzero"),
    "aten::masked_select": _dynamic("masked_select"),
    **dict.fromkeys(("aten::_unique", "aten::_unique2", "aten::unique_dim"), _dynamic("unique")),
    **dict.fromkeys(
        ("aten::unique_consecutive", "aten::unique_dim_consecutive"), _dynamic("unique_consecutive")
    ),
}
"""By the name of the op, with or without its overload. Where a kernel on the CPU is the same code
as on a GPU, what it calls is looked up too (``refused_ops.checked``)."""

ONLY_ON_THE_CPU = frozenset(
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
