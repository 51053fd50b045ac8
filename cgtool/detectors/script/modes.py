"""The two modes that see what a script does: every op, and every read on the host."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from cgtool.detectors.script.run import Watch
from cgtool.observe.frames import call_op
from cgtool.torch_compat.private import TorchDispatchMode, no_torch_function

_READS = frozenset(
    (
        torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.__repr__,
        torch.Tensor.__format__,
    )
)  # fmt: skip
_MOVES = frozenset((torch.Tensor.cpu, torch.Tensor.to, torch.Tensor.copy_))


class DispatchObserver(TorchDispatchMode):
    """Every ATen call of the script's: handed to the recorder of a capture, or watched."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        recorder = self.watch.machine.recorder
        if recorder is not None:
            return recorder.__torch_dispatch__(func, types, args, kwargs)
        made = call_op(func, args, kwargs)
        self.watch.eager(func, args, kwargs, made)
        return made


class FunctionObserver(TorchFunctionMode):
    """Calls that read a tensor on the host and dispatch no op of their own."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = call_op(func, args, kwargs)
        if func in _READS or func in _MOVES:
            self._look(func, args, kwargs, made)
        elif isinstance(made, torch.Tensor):
            self.watch.returned(made)
        return made

    def _look(self, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        tensor = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if tensor is None:
            return
        place = self.watch.machine.place
        with no_torch_function():
            if func in _READS:
                if place(tensor) == "device":
                    self.watch.waited(func.__name__, tensor)
                return
            source = args[1] if func is torch.Tensor.copy_ and len(args) > 1 else tensor
            if not isinstance(source, torch.Tensor) or not isinstance(made, torch.Tensor):
                return
            lands = place(made)
            waits = lands == "host" or (lands == "pinned" and not kwargs.get("non_blocking"))
            if waits and place(source) == "device":
                self.watch.waited(func.__name__, source)
