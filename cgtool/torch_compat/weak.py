"""Weak references to tensors, of which PyTorch does not know.

``torch.utils.swap_tensors``, and with it ``Module.to`` and ``load_state_dict`` where they exchange
tensors, refuse a tensor that has a weak reference: one that cgtool keeps would end a program that
runs without it.
"""

from __future__ import annotations

import types
import weakref
from typing import Any, TypeVar

import torch

from cgtool.torch_compat.patches import Patches

T = TypeVar("T")


class Weak(weakref.ref[T]):
    """One of cgtool's own: no code of the program shares it."""

    __slots__ = ()


def hide(patches: Patches) -> None:
    """``swap_tensors`` sees the weak references of the program alone."""

    def references(value: Any) -> list[Any]:
        return [each for each in weakref.getweakrefs(value) if not isinstance(each, Weak)]

    seen = types.ModuleType(weakref.__name__)
    vars(seen).update(vars(weakref), getweakrefs=references)
    patches.replace(torch.utils, "weakref", seen)
