"""Who reads a tensor's value on the host: the user's own code, or a library on its behalf."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from cgtool.findings.registry import code
from cgtool.model.finding import Code
from cgtool.observe.frames import package_part

SYNC_ITEM = code("sync-item")
SYNC_PRINT_OR_FORMAT = code("sync-print-or-format")
SYNC_SLICE_WITH_TENSOR_BOUNDS = code("sync-slice-with-tensor-bounds")
SYNC_TRUTH_VALUE = code("sync-truth-value")

_TRUTH = {torch.Tensor.__bool__, torch.Tensor.__contains__, torch.is_nonzero}
_BOUNDS = {
    torch.Tensor.__getitem__, torch.Tensor.__setitem__, torch.arange, torch.linspace,
    torch.narrow, torch.Tensor.narrow, torch.split, torch.Tensor.split, torch.full, torch.zeros,
    torch.Tensor.expand, torch.Tensor.view, torch.Tensor.reshape, torch.Tensor.__index__,
    torch.chunk, torch.Tensor.chunk, torch.Tensor.repeat, torch.nn.functional.pad,
}  # fmt: skip
_PRINTS = {torch.Tensor.__repr__, torch.Tensor.__format__}

# By a part of the file's name, the innermost frame first: who asks, and what to write instead.
_LIBRARIES = (
    (
        "/torch/_tensor_str.py",
        SYNC_PRINT_OR_FORMAT,
        "printing a tensor",
        "print it after the replay",
    ),
    (
        "/torch/amp/grad_scaler.py",
        code("nan-guard-sync"),
        "GradScaler, which reads found_inf on the host,",
        "capture forward, loss and backward, and run scaler.step eagerly; or use an optimizer "
        "with fused=True",
    ),
    (
        "/torch/nn/utils/clip_grad.py",
        code("nan-guard-sync"),
        "clip_grad_norm_(error_if_nonfinite=True), which reads the norm on the host,",
        "leave error_if_nonfinite out, and look at the norm after the replay",
    ),
    (
        "/torch/optim/sgd.py",
        code("sgd-tensor-lr-sync"),
        "SGD with a tensor as learning rate, which it reads on the host,",
        "build it with fused=True, which takes the tensor on the device",
    ),
    (
        "/torch/optim/",
        code("optimizer-not-capturable"),
        "the optimizer, which reads its state on the host,",
        "build it with capturable=True",
    ),
    (
        "/torch/distributions/",
        code("hidden-sync-in-stock-module"),
        "torch.distributions, which checks its arguments on the host,",
        "build the distribution with validate_args=False",
    ),
    (
        "/torch/nn/modules/batchnorm.py",
        code("hidden-sync-in-stock-module"),
        "batch norm with momentum=None, which reads its counter on the host,",
        "give it a fixed momentum",
    ),
    (
        "/torch/autograd/",
        code("hidden-sync-in-stock-module"),
        "autograd's checks, which read values on the host,",
        "leave detect_anomaly out of captured code",
    ),
    (
        "/torch/nn/",
        code("hidden-sync-in-stock-module"),
        "a function of torch.nn, which reads a value on the host,",
        "replace it, or call it outside the captured code",
    ),
    (
        "/torch/functional.py",
        code("hidden-sync-in-stock-module"),
        "a function of torch, which reads a value on the host,",
        "replace it, or call it outside the captured code",
    ),
    (
        "/torch/_linalg_utils.py",
        code("linalg-error-check"),
        "torch.linalg, which reads its error code on the host,",
        "use the _ex variant with check_errors=False",
    ),
)


def _files() -> Iterator[str]:
    """File names from the running frame outward, up to the first outside torch and cgtool."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        name = package_part(file)
        if name.startswith("/torch/"):
            yield name
        elif not name.startswith("/cgtool/") and not file.startswith("<"):
            return
        frame = frame.f_back  # type: ignore[assignment]


def library_code(files: Iterable[str]) -> Code | None:
    """The code by the file names of a traceback, innermost first, when a library is to name."""
    for name in files:
        if not name.startswith("/torch/"):
            break
        for part, library, _, _ in _LIBRARIES:
            if part in name:
                return library
    return None


def sync_code(function: Any, what: str, fix: str) -> tuple[Code, str, str]:
    """(code, what it is, what to write instead) for a value that is read on the host.

    ``function`` is the torch function that the user's code called, if it called one.
    """
    for name in _files():
        for part, library, who, instead in _LIBRARIES:
            if part in name:
                return library, who, instead
    if function in _PRINTS:
        return SYNC_PRINT_OR_FORMAT, "printing a tensor", "print it after the replay"
    if function in _TRUTH:
        return (
            SYNC_TRUTH_VALUE,
            "the truth value of a tensor (if, while, assert, bool())",
            "use torch.where or torch.cond, or one graph for each branch, chosen outside",
        )
    if function in _BOUNDS:
        return (
            SYNC_SLICE_WITH_TENSOR_BOUNDS,
            "a tensor as a bound or size, which is read on the host,",
            "gather with an index tensor of fixed length, or mask",
        )
    return SYNC_ITEM, f"{what} (.item(), int(), float())", fix
