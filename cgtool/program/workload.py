"""What an entry point turned out to be: callables with their sample arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from cgtool.model.capture import Frame


@dataclass(frozen=True)
class Part:
    """One callable of a workload and the arguments to capture it with."""

    name: str
    """How the user would call it: ``TransformerBlock``, ``generator``, ``train_step``."""
    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    modules: Mapping[str, torch.nn.Module] = field(default_factory=dict)
    """Root modules that the callable runs, by path prefix: ``{"": model}`` when the callable is a
    module, ``{"net": net, "head": head}`` for modules that a function closes over."""
    frames: tuple[Frame, ...] = ()
    """Where the entry point is defined: for failures that no line of the user's is in."""

    def parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Named parameters that require grad, each once, in registration order."""
        seen: dict[int, tuple[str, torch.nn.Parameter]] = {}
        for prefix, module in self.modules.items():
            for name, parameter in module.named_parameters():
                if parameter.requires_grad and id(parameter) not in seen:
                    seen[id(parameter)] = (f"{prefix}.{name}" if prefix else name, parameter)
        return list(seen.values())


@dataclass(frozen=True)
class Workload:
    """Everything that the backends need to know; built by ``cgtool.program.load``."""

    spec: str
    kind: str
    """``callable`` (one, forward and maybe backward), ``callables`` (several that share a pool,
    forward in order, backward in reverse) or ``step`` (captured as it is, no arguments)."""
    parts: tuple[Part, ...]
    file: str | None = None
    line: int | None = None
    notes: tuple[str, ...] = ()
    """What the reader must know: which globals were taken, where inputs came from."""

    def entry_frame(self) -> Frame | None:
        """Where the entry point is defined."""
        if self.file is None:
            return None
        return Frame(self.file, self.line or 1, self.spec.rpartition(":")[2])
