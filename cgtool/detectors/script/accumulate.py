"""Gradients add up in place under the watcher's mode, as they do without it.

Under any dispatch mode autograd adds out of place (``isTensorSubclassLike`` in accumulate_grad.h),
so that ``.grad`` would be another tensor after each backward. What it made is copied back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


def _leaves(outputs: Any) -> Iterator[torch.Tensor]:
    """The tensors that a backward from these outputs may accumulate into."""
    waiting = [one.grad_fn for one in outputs if one.grad_fn is not None]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.Tensor):
            yield variable
        waiting += [one for one, _ in node.next_functions if one is not None]


@contextlib.contextmanager
def in_place() -> Iterator[None]:
    """``backward()`` leaves each ``.grad`` that there was where it was."""
    owner: Any = torch.autograd
    run = owner._engine_run_backward

    def backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        adds = kwargs.get("accumulate_grad", False) and not (len(args) > 2 and args[2])
        if not adds:
            return run(outputs, *args, **kwargs)
        before = [(leaf, leaf.grad) for leaf in _leaves(outputs) if leaf.grad is not None]
        made = run(outputs, *args, **kwargs)
        with torch.no_grad():
            for leaf, old in before:
                new = leaf.grad
                if new is None or new is old or new.shape != old.shape:
                    continue
                if old.layout == new.layout == torch.strided:
                    old.copy_(new)
                    leaf.grad = old
        return made

    owner._engine_run_backward = backward
    try:
        yield
    finally:
        owner._engine_run_backward = run
