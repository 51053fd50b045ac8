"""Tensors and modules of a program that matter to a later call of captured code.

To find them, every object of Python is looked at, which copies the memory of a forked process. So
it is done once for each capture, and before a process is forked.
"""

from __future__ import annotations

import gc
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from cgtool.observe.script.state import WatchedGraph
from cgtool.observe.tensors import key_of
from cgtool.torch_compat.weak import Weak


class LiveObjects(NamedTuple):
    """At the end of a capture."""

    leaves: list[Weak[torch.Tensor]]
    """Those whose gradients are in the memory of the graph: they had none before."""
    training: list[tuple[Weak[torch.nn.Module], bool]]
    """The modules, and whether each is in training mode."""

    def alive(self) -> list[torch.Tensor]:
        """The leaves that are still there."""
        return [leaf for reference in self.leaves if (leaf := reference()) is not None]


@lru_cache(maxsize=1)
def at_end_of(graph: WatchedGraph) -> LiveObjects:
    """To be called when a capture has ended."""
    found = LiveObjects([], [])
    kinds: dict[type, type | None] = {}
    for each in gc.get_objects():
        kind = type(each)
        if kind not in kinds:
            bases = torch.Tensor, torch.nn.Module
            kinds[kind] = next((base for base in bases if issubclass(kind, base)), None)
        base = kinds[kind]
        if base is torch.Tensor and _has_gradient_of(each, graph):
            found.leaves.append(Weak(each))
        elif base is torch.nn.Module and "training" in each.__dict__:
            found.training.append((Weak(each), each.training))
    return found


def _has_gradient_of(tensor: Any, graph: WatchedGraph) -> bool:
    """Whether this is a leaf whose gradient is in the memory of a graph."""
    try:
        gradient = tensor.grad if tensor.is_leaf else None
        return gradient is not None and key_of(gradient) in graph.allocated
    except (RuntimeError, AttributeError):
        return False
