"""``torch.cond`` and its like without ``torch.compile``.

In eager code they are compiled, and their backward needs branches that Dynamo has traced. Where
nothing is compiled, the branch that the condition selects runs as any other code does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from cgtool.torch_compat.private import higher_order_ops, mode_count, parse_key

_NAMES = ("cond", "while_loop", "scan", "associative_scan", "map_impl")


@contextlib.contextmanager
def run_directly() -> Iterator[None]:
    """While entered, control flow ops that autograd records run their branches directly."""
    autograd, dense = parse_key("Autograd"), parse_key("CompositeExplicitAutograd")
    replaced: list[tuple[Any, Callable[..., Any]]] = []
    for op in filter(None, map(higher_order_ops.get, _NAMES)):
        if autograd in op.py_kernels and dense in op.py_kernels:
            replaced.append((op, op.py_kernels[autograd]))
            _set_kernel(op, autograd, _directly(op.py_kernels[dense], op.py_kernels[autograd]))
    try:
        yield
    finally:
        for op, kernel in replaced:
            _set_kernel(op, autograd, kernel)


def _directly(dense: Callable[..., Any], recorded: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        # Under a mode (of fake tensors, of a trace) there is no value to decide by.
        is_direct = torch.is_grad_enabled() and not mode_count()
        return (dense if is_direct else recorded)(*args, **kwargs)

    return kernel


def _set_kernel(op: Any, key: Any, kernel: Callable[..., Any]) -> None:
    del op.py_kernels[key]
    op.py_impl(key)(kernel)
