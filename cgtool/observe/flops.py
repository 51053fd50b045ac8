"""Floating-point operations of an op call, by PyTorch's formulas (``torch.utils.flop_counter``).

There are formulas for matmuls, convolutions and attention; a multiplication and an addition count
as two operations. A few composite ops are added, which a recorder sees whole in inference mode.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import torch

from cgtool.torch_compat.private import packet_of

aten = torch.ops.aten
_RAGGED: dict[Any, int] = {
    aten._flash_attention_forward: 3,
    aten._flash_attention_backward: 6,
    aten._efficient_attention_forward: 4,
    aten._efficient_attention_backward: 6,
}
"""Formulas that take tensors and read offsets from the device, which makes the host wait and a
capture fail; and the position of these offsets among the arguments."""

_PLAIN = frozenset((int, float, bool, str, type(None)))


class FlopCounter:
    """Counts the operations of single calls. Never raises: None for what it cannot count."""

    def __init__(self) -> None:
        self._formulas: dict[Any, Callable[..., Any] | None] = {}
        self._known: dict[Any, int | None] = {}
        self._registries: tuple[Mapping[Any, Callable[..., Any]], ...] = ()
        self._of_shapes: Any = None
        # Not imported with this file: it imports Triton where that is installed (80 ms), and warns
        # where it is not.
        log = logging.getLogger("torch.utils.flop_counter")
        disabled, log.disabled = log.disabled, True
        try:
            from torch.utils import flop_counter

            # PyTorch's registry comes first: the user's code may add to it.
            self._registries = (flop_counter.flop_registry, _composite_formulas(flop_counter))
            # A formula is wrapped to take shapes, unless it was registered to take tensors.
            self._of_shapes = flop_counter.shape_wrapper(lambda: 0).__code__
        except Exception:
            # A broken Triton or another PyTorch: no formulas.
            return
        finally:
            log.disabled = disabled

    def count(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        """The operations of a call that returned ``result``: an int, or None."""
        try:
            formula = self._formulas[func]
        except KeyError:
            formula = self._formulas[func] = self._formula(func)
        if formula is None:
            return None
        key = _key(func, args, kwargs)
        if key is not None and key in self._known:
            return self._known[key]
        try:
            flops = self._count(formula, func, args, kwargs, result)
        except Exception:
            # Formulas of the user's, and arguments of any kind.
            flops = None
        if key is not None:
            self._known[key] = flops
        return flops

    def _formula(self, func: Any) -> Callable[..., Any] | None:
        packet = packet_of(func)
        formulas = (registry.get(packet) for registry in self._registries)
        return next((formula for formula in formulas if formula is not None), None)

    def _count(self, formula: Any, func: Any, args: Any, kwargs: Any, result: Any) -> int | None:
        if formula.__code__ is not self._of_shapes:
            offsets = _RAGGED.get(packet_of(func))
            if offsets is None or len(args) <= offsets or args[offsets] is not None:
                return None
        return int(formula(*args, **kwargs, out_val=result))


def _key(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """What the count depends on; None unless the arguments are tensors and numbers. Keeps no
    tensor alive."""
    key = [func, *kwargs]
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            key.append(value.shape)
        elif type(value) in _PLAIN:
            key.append(value)
        elif isinstance(value, list | tuple) and all(type(part) in _PLAIN for part in value):
            key.append(tuple(value))
        else:
            return None
    return tuple(key)


def _composite_formulas(library: Any) -> dict[Any, Callable[..., Any]]:
    def linear(x: Any, weight: Any, *_: Any, **_kwargs: Any) -> int:
        return int(2 * prod(x) * weight[0])

    def matmul(left: Any, _right: Any, out_shape: Any = None, **_kwargs: Any) -> int:
        return int(2 * prod(out_shape) * left[-1])

    def convolution(x: Any, weight: Any, *_: Any, out_shape: Any = None, **_kwargs: Any) -> int:
        return int(library.conv_flop_count(x, weight, out_shape, transposed=False))

    def transposed(x: Any, weight: Any, *_: Any, out_shape: Any = None, **_kwargs: Any) -> int:
        return int(library.conv_flop_count(x, weight, out_shape, transposed=True))

    def attention(query: Any, key: Any, value: Any, *_: Any, **_kwargs: Any) -> int:
        return int(library.sdpa_flop_count(query, key, value))

    formulas: dict[Any, Callable[..., Any]] = {
        aten.linear: linear,
        aten.matmul: matmul,
        aten.scaled_dot_product_attention: attention,
    }
    formulas |= dict.fromkeys((aten.conv1d, aten.conv2d, aten.conv3d), convolution)
    formulas |= dict.fromkeys(
        (aten.conv_transpose1d, aten.conv_transpose2d, aten.conv_transpose3d), transposed
    )
    wrapped = {op: library.shape_wrapper(formula) for op, formula in formulas.items()}
    # The CPU's names of the same ops, which the simulated device runs.
    flash = library.flop_registry
    wrapped[aten._scaled_dot_product_flash_attention_for_cpu] = flash[
        aten._scaled_dot_product_flash_attention
    ]
    wrapped[aten._scaled_dot_product_flash_attention_for_cpu_backward] = flash[
        aten._scaled_dot_product_flash_attention_backward
    ]
    return wrapped
