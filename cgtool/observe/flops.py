"""Floating-point operations of an op call, by PyTorch's formulas (``torch.utils.flop_counter``).

They count a multiplication and an addition as two, of matmuls, convolutions and attention; every
other op has no formula. A few ops are added that PyTorch takes apart before it counts: in
inference mode they reach the recorder whole.
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
"""Formulas that are given tensors, not shapes, and the position of the offsets that they would read
from the device, which makes the host wait and a capture fail."""

_PLAIN = frozenset((int, float, bool, str, type(None)))


class FlopCounter:
    """Counts single calls. Never raises: what cannot be counted is None."""

    def __init__(self) -> None:
        self._formulas: dict[Any, Callable[..., Any] | None] = {}
        self._known: dict[Any, int | None] = {}
        self._registries: tuple[Mapping[Any, Callable[..., Any]], ...] = ()
        self._of_shapes: Any = None
        # It imports Triton where that is installed (80 ms), and warns where it is not: so not at
        # the head of this file.
        log = logging.getLogger("torch.utils.flop_counter")
        disabled, log.disabled = log.disabled, True
        try:
            from torch.utils import flop_counter

            # PyTorch's own comes first: the user's code may add to it.
            self._registries = (flop_counter.flop_registry, _more(flop_counter))
            # A formula is wrapped to be given shapes, unless it asked for the tensors themselves.
            self._of_shapes = flop_counter.shape_wrapper(lambda: 0).__code__
        except Exception:
            # A broken Triton, another PyTorch: no formulas.
            return
        finally:
            log.disabled = disabled

    def count(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any) -> Any:
        """Of one call that returned ``made``; an int or None."""
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
            flops = self._count(formula, func, args, kwargs, made)
        except Exception:
            # A formula of anybody's, for arguments of any kind.
            flops = None
        if key is not None:
            self._known[key] = flops
        return flops

    def _formula(self, func: Any) -> Callable[..., Any] | None:
        packet = packet_of(func)
        found = (registry.get(packet) for registry in self._registries)
        return next((formula for formula in found if formula is not None), None)

    def _count(self, formula: Any, func: Any, args: Any, kwargs: Any, made: Any) -> int | None:
        if formula.__code__ is not self._of_shapes:
            offsets = _RAGGED.get(packet_of(func))
            if offsets is None or len(args) <= offsets or args[offsets] is not None:
                return None
        return int(formula(*args, **kwargs, out_val=made))


def _key(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """What the count depends on, where arguments are tensors and numbers. Holds no tensor."""
    found = [func, *kwargs]
    for one in (*args, *kwargs.values()):
        if isinstance(one, torch.Tensor):
            found.append(one.shape)
        elif type(one) in _PLAIN:
            found.append(one)
        elif isinstance(one, list | tuple) and all(type(part) in _PLAIN for part in one):
            found.append(tuple(one))
        else:
            return None
    return tuple(found)


def _more(library: Any) -> dict[Any, Callable[..., Any]]:
    def linear(x: Any, weight: Any, *_: Any, **_kwargs: Any) -> int:
        return int(2 * prod(x) * weight[0])

    def matmul(one: Any, _other: Any, out_shape: Any = None, **_kwargs: Any) -> int:
        return int(2 * prod(out_shape) * one[-1])

    def convolution(x: Any, weight: Any, *_: Any, out_shape: Any = None, **_kwargs: Any) -> int:
        return int(library.conv_flop_count(x, weight, out_shape, transposed=False))

    def transposed(x: Any, weight: Any, *_: Any, out_shape: Any = None, **_kwargs: Any) -> int:
        return int(library.conv_flop_count(x, weight, out_shape, transposed=True))

    def attention(query: Any, key: Any, value: Any, *_: Any, **_kwargs: Any) -> int:
        return int(library.sdpa_flop_count(query, key, value))

    found: dict[Any, Callable[..., Any]] = {
        aten.linear: linear,
        aten.matmul: matmul,
        aten.scaled_dot_product_attention: attention,
    }
    found |= dict.fromkeys((aten.conv1d, aten.conv2d, aten.conv3d), convolution)
    found |= dict.fromkeys(
        (aten.conv_transpose1d, aten.conv_transpose2d, aten.conv_transpose3d), transposed
    )
    wrapped = {op: library.shape_wrapper(formula) for op, formula in found.items()}
    # The same attention as the CPU spells it: what the simulated device runs.
    flash = library.flop_registry
    wrapped[aten._scaled_dot_product_flash_attention_for_cpu] = flash[
        aten._scaled_dot_product_flash_attention
    ]
    wrapped[aten._scaled_dot_product_flash_attention_for_cpu_backward] = flash[
        aten._scaled_dot_product_flash_attention_backward
    ]
    return wrapped
