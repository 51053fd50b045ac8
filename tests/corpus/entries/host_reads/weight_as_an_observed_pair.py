from __future__ import annotations

import torch
from torch.utils._pytree import tree_map


class _Pair(torch.Tensor):
    """A value with its scale, as one tensor."""

    @staticmethod
    def __new__(cls, value, scale):
        return torch.Tensor._make_wrapper_subclass(
            cls, value.shape, dtype=value.dtype, device=value.device
        )

    def __init__(self, value, scale):
        self.value, self.scale = value, scale

    def __tensor_flatten__(self):
        return ["value", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner, _meta, _size, _stride):
        return _Pair(inner["value"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func, _types, args=(), kwargs=None):
        plain = tree_map(
            lambda each: each.value * each.scale if isinstance(each, _Pair) else each, args
        )
        return func(*plain, **(kwargs or {}))


class _Observed(_Pair):
    @classmethod
    def __torch_dispatch__(cls, func, _types, args=(), kwargs=None):
        def plain(each):
            if not isinstance(each, _Observed):
                return each
            if each.scale.max() > 1:  # <- sync-truth-value
                return each.value
            return each.value * each.scale

        return func(*tree_map(plain, args), **(kwargs or {}))


def weight_as_an_observed_pair(device):
    weight = _Observed(torch.randn(8, 8, device=device), torch.full((8, 1), 0.5, device=device))

    @torch.no_grad()
    def forward(x):
        return x @ weight

    return forward, (torch.randn(4, 8, device=device),)
