"""The functions of PyTorch that code calls on a real GPU while it is run as if captured."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from cgtool.detectors import rules
from cgtool.detectors.region import Region
from cgtool.findings.registry import code
from cgtool.observe.frames import call_op
from cgtool.observe.placement import DEVICE, HOST, is_cpu_device, is_cuda_device, place_of
from cgtool.torch_compat.private import current_device

H2D_PAGEABLE_COPY = code("h2d-pageable-copy")
SYNC_D2H_COPY = code("sync-d2h-copy")


def target_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Where ``Tensor.to`` is asked to put its result; None leaves it where it is."""
    for one in (*args[1:], kwargs.get("device"), kwargs.get("other")):
        if isinstance(one, torch.Tensor):
            return DEVICE if place_of(one) == DEVICE else HOST
        if is_cuda_device(one) or (isinstance(one, int) and not isinstance(one, bool)):
            return DEVICE
        if is_cpu_device(one):
            return HOST
        if isinstance(one, bool):
            # to(device, dtype, non_blocking, copy): no device follows a flag.
            break
    return None


def is_number(value: Any) -> bool:
    """True for what ``x[mask] = value`` fills with, without a copy of shapes."""
    if isinstance(value, torch.Tensor):
        return value.dim() == 0 and place_of(value) != DEVICE
    return isinstance(value, bool | int | float | complex)


def refuse_move(region: Region, source: str, target: str | None) -> None:
    """A copy between the device and pageable memory of the host, by .to, .cuda or .cpu."""
    crosses = target is not None and (source == DEVICE) != (target == DEVICE)
    if crosses and HOST in (source, target):
        what = "Tensor.cpu()" if target == HOST else "moving a tensor from the host"
        rules.refuse_copy(
            region,
            SYNC_D2H_COPY if target == HOST else H2D_PAGEABLE_COPY,
            f"{what} (.to, .cuda, .cpu)",
            "move it outside the captured code; or copy_ with a pinned tensor that lives on",
        )


class FunctionWatch(TorchFunctionMode):
    """Tells ``region`` of every function, and holds it against the rules."""

    def __init__(self, region: Region) -> None:
        super().__init__()
        self.region = region

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        region, kwargs = self.region, kwargs or {}
        if not region.capturing:
            return call_op(func, args, kwargs)
        self._look(func, args, kwargs)
        before = region.function, region.fills_mask
        region.function = func
        region.fills_mask = func is torch.Tensor.__setitem__ and is_number(args[2])
        try:
            return call_op(func, args, kwargs)
        finally:
            region.function, region.fills_mask = before

    def _look(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        region = self.region
        check = rules.FUNCTIONS.get(func)
        if check is not None:
            check(region, args, kwargs)
        if func in rules.FROM_PYTHON and self._for_gpu(kwargs):
            rules.refuse_from_python(region, args, kwargs)
        elif func is torch.Tensor.to:
            refuse_move(region, place_of(args[0]), target_of(args, kwargs))
        elif func is torch.Tensor.cuda:
            refuse_move(region, place_of(args[0]), DEVICE)
        elif func is torch.Tensor.cpu:
            refuse_move(region, place_of(args[0]), HOST)
        elif func is torch.Tensor.pin_memory or kwargs.get("pin_memory") is True:
            rules.note_pinning(region)

    @staticmethod
    def _for_gpu(kwargs: dict[str, Any]) -> bool:
        wanted = kwargs.get("device")
        if wanted is None:
            wanted = current_device()
        return is_cuda_device(wanted) or (isinstance(wanted, int) and not isinstance(wanted, bool))
