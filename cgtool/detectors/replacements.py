"""What to write for functions of PyTorch that read a value on the host, or the size of a result."""

from __future__ import annotations

import ast

from cgtool.detectors.op_rules import OUTSIDE
from cgtool.observe.frames import position_of
from cgtool.observe.ops import OpCall
from cgtool.observe.source import call_at

RANGES = ("arange", "range")
"""Their length depends on the values."""
_STEPS = "torch.linspace(0, 1, steps, device=...)"
_MASKED = (
    "compute with all elements, whose number is fixed, and select with "
    "`torch.where(mask, x, other)` or `masked_fill`, where `other` has no effect on the result"
)
_DENSE = "keep the tensor dense, with its zeros; or convert it once, outside the captured code"
_INSTEAD = {
    **dict.fromkeys(RANGES, "pass a Python number"),
    "linspace": f"compute it on the device: start + (end - start) * {_STEPS}",
    "logspace": f"compute it on the device: base ** (start + (end - start) * {_STEPS})",
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
    "one_hot": "pass num_classes, the number of classes",
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
}
"""What to write for a function that reads a value on the host, or the size of its result."""


def instead_of(function: str, call: OpCall | None = None) -> str:
    """The fix for a function that reads on the host, in the call of it that runs an op."""
    if function == "cov":
        return _covariance(call_at(position_of(call.chain[0])) if call and call.chain else None)
    return _INSTEAD.get(function, OUTSIDE)


def _covariance(call: ast.Call | None) -> str:
    """What ``torch.cov`` computes with the arguments of a call (Correlation.cpp)."""
    given = {each.arg: ast.unparse(each.value) for each in (call.keywords if call else ())}
    frequencies, weights = (_of(given.get(name)) for name in ("fweights", "aweights"))
    correction = given.get("correction", "1")
    if not frequencies and not weights:
        return f"subtract the means, and multiply: `x @ x.T / {_less('x.shape[1]', correction)}`"
    w = " * ".join(filter(None, (frequencies, weights)))
    taken = correction
    if weights and correction != "0":
        factor = "" if correction == "1" else f"{correction} * "
        taken = f"{factor}(w * {weights}).sum() / w.sum()"
    begin = "" if w == "w" else f"with w = {w}, "
    return (
        f"{begin}subtract the weighted means `(x * w).sum(1, keepdim=True) / w.sum()`, and "
        f"multiply: `x @ (x * w).T / {_less('w.sum()', taken)}`"
    )


def _of(source: str | None) -> str:
    if source is None or source == "None":
        return ""
    return source if source.replace(".", "").isidentifier() else f"({source})"


def _less(count: str, taken: str) -> str:
    return count if taken == "0" else f"({count} - {taken})"
