"""Tensors, modules and modes of PyTorch that matter to a later run of captured code."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from cgtool.observe.script.state import WatchedGraph
from cgtool.observe.tensors import key_of
from cgtool.torch_compat.weak import Weak


def _autocast() -> list[tuple[str, bool, torch.dtype]]:
    return [
        (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        for kind in ("cpu", "cuda")
    ]


@dataclass
class LiveObjects:
    """At the end of a capture."""

    leaves: list[Weak[torch.Tensor]] = field(default_factory=list)
    """Leaves whose gradients are in the memory of the graph: they had none before."""
    training: list[tuple[Weak[torch.nn.Module], bool]] = field(default_factory=list)
    """The modules, and whether each is in training mode."""
    is_grad: bool = field(default_factory=torch.is_grad_enabled)
    is_inference: bool = field(default_factory=torch.is_inference_mode_enabled)
    autocast: list[tuple[str, bool, torch.dtype]] = field(default_factory=_autocast)
    caches_casts: bool = field(default_factory=torch.is_autocast_cache_enabled)
    dtype: torch.dtype = field(default_factory=torch.get_default_dtype)

    def alive(self, graph: WatchedGraph) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The leaves that are still there, with their gradients, if these are in the memory of the
        graph."""
        leaves = [leaf for reference in self.leaves if (leaf := reference()) is not None]
        return [
            (leaf, leaf.grad)
            for leaf in leaves
            if leaf.grad is not None and _has_gradient_of(leaf, graph)
        ]

    @contextlib.contextmanager
    def modes(self) -> Iterator[None]:
        """While entered, the modes of PyTorch and of modules are those of the capture: a program
        may evaluate between two replays."""
        now = [(each, each.training) for reference, _ in self.training if (each := reference())]
        autocast, dtype = _autocast(), torch.get_default_dtype()
        caches_casts = torch.is_autocast_cache_enabled()
        self._set(self.autocast, self.dtype, caches_casts=self.caches_casts)
        for reference, is_training in self.training:
            if (module := reference()) is not None:
                module.__dict__["training"] = is_training
        try:
            with torch.inference_mode(self.is_inference), torch.set_grad_enabled(self.is_grad):
                yield
        finally:
            for module, is_training in now:
                module.__dict__["training"] = is_training
            self._set(autocast, dtype, caches_casts=caches_casts)

    @staticmethod
    def _set(
        autocast: list[tuple[str, bool, torch.dtype]], dtype: torch.dtype, *, caches_casts: bool
    ) -> None:
        # Casts that autocast keeps are those of one run.
        torch.clear_autocast_cache()
        torch.set_autocast_cache_enabled(caches_casts)
        for kind, is_on, autocast_dtype in autocast:
            torch.set_autocast_enabled(kind, is_on)
            torch.set_autocast_dtype(kind, autocast_dtype)
        torch.set_default_dtype(dtype)


def at_end_of(graph: WatchedGraph) -> LiveObjects:
    """To be called when a capture has ended."""
    found = LiveObjects()
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
