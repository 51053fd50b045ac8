"""Which ``nn.Module`` is running: a stack a thread, kept by PyTorch's global module hooks.

``torch.utils.module_tracker`` does this with a hook on every tensor as well, to follow backward;
that changes the autograd graph which is about to be captured. Backward is followed through
sequence numbers instead (``cgtool.observe.ops``), so two global hooks are enough.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

Running = tuple[str, str]
"""Path and type name of the module that is running."""


def paths(roots: Mapping[str, torch.nn.Module]) -> dict[int, str]:
    """``id(module)`` to path, for every module under the roots; the first name found wins."""
    names: dict[int, str] = {}
    for prefix, root in roots.items():
        for name, module in root.named_modules():
            full = ".".join(part for part in (prefix, name) if part)
            names.setdefault(id(module), full)
    return names


class ModuleStack(threading.local):
    """While entered, ``current()`` names the innermost module that is running on this thread."""

    def __init__(self, roots: Mapping[str, torch.nn.Module]) -> None:
        # threading.local runs __init__ once a thread, with the same arguments.
        self._paths = paths(roots)
        self.stack: list[Running] = []

    def current(self) -> Running | None:
        stack = self.stack
        return stack[-1] if stack else None

    def _push(self, module: torch.nn.Module, _args: Any) -> None:
        kind = type(module).__name__
        path = self._paths.get(id(module))
        if path is None:
            # Made inside forward, so it has no path of its own: named under its parent.
            parent = self.current()
            path = f"{parent[0]}.<{kind}>".lstrip(".") if parent else f"<{kind}>"
        self.stack.append((path, kind))

    def _pop(self, _module: torch.nn.Module, _args: Any, _out: Any) -> None:
        if self.stack:
            self.stack.pop()

    def __enter__(self) -> ModuleStack:
        # always_call pops also when forward raises.
        self._hooks = (
            register_module_forward_pre_hook(self._push),
            register_module_forward_hook(self._pop, always_call=True),
        )
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self.stack.clear()
