"""PyTorch's own warnings that say what no op shows."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from cgtool.detectors.script.run import Watch


@contextlib.contextmanager
def heard(tell: Callable[[str], None]) -> Iterator[None]:
    """Every warning of the block is told, then shown as it would have been.

    What PyTorch says once a process, or Python once a line, is told each time.
    """
    always = torch.is_warn_always_enabled()
    caught: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.set_warn_always(True)
            yield
    finally:
        torch.set_warn_always(always)
        for one in caught:
            tell(str(one.message))
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


def hook_backward(stack: contextlib.ExitStack, watch: Watch) -> None:
    """A captured backward tells its warnings."""
    owner: Any = torch.autograd
    run = owner._engine_run_backward

    @functools.wraps(run)
    def backward(*args: Any, **kwargs: Any) -> Any:
        if watch.capture is None:
            return run(*args, **kwargs)
        with heard(watch.warned):
            return run(*args, **kwargs)

    owner._engine_run_backward = backward
    stack.callback(setattr, owner, "_engine_run_backward", run)
