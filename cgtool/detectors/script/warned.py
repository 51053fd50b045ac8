"""PyTorch's own warnings that say what no op shows."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from cgtool.detectors.script.run import Watch
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import BACKWARD


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

    def backward(run_backward: Any, *args: Any, **kwargs: Any) -> Any:
        if watch.capture is None:
            return run_backward(*args, **kwargs)
        with heard(watch.warned):
            return run_backward(*args, **kwargs)

    stack.enter_context(Patches()).wrap(*BACKWARD, backward)
