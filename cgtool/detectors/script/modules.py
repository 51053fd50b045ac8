"""Modules between capture and replay: their mode, and the storage of their tensors."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from cgtool.detectors.script.check import Check
from cgtool.detectors.script.inputs import Changes, Inputs, changed_at
from cgtool.findings.registry import code
from cgtool.observe.script.state import WatchedGraph
from cgtool.torch_compat.private import APPLY, Dropout

TRAIN_EVAL_TOGGLE = code("train-eval-toggle")


def depends_on_mode(module: torch.nn.Module) -> bool:
    """True when ``forward`` of a module looks at ``training``, and it makes a difference."""
    if isinstance(module, Dropout):
        return bool(module.p > 0)
    forward = getattr(type(module).forward, "__code__", None)
    if forward is None:
        return False
    if "training" in forward.co_names:
        return True
    # Recurrent modules hand it to their kernel only where they have dropout.
    return isinstance(module, torch.nn.RNNBase) and module.dropout > 0


class Modes(Check):
    """``train()`` or ``eval()`` after the capture."""

    def __init__(self, watch: Any, inputs: Inputs, stack: ExitStack) -> None:
        super().__init__(watch)
        self._ran: dict[int, dict[weakref.ref[torch.nn.Module], bool]] = {}
        self._toggled: Changes = weakref.WeakKeyDictionary()
        self._inputs = inputs
        handle = register_module_forward_pre_hook(self._runs)
        stack.callback(handle.remove)
        module: Any = torch.nn.Module
        for name, places in (
            ("train", self._toggled),
            ("load_state_dict", inputs.moved),
            (APPLY.name, inputs.moved),
        ):
            before = getattr(module, name)
            setattr(module, name, self._noted(before, places))
            stack.callback(setattr, module, name, before)

    def _noted(self, before: Callable[..., Any], places: Changes) -> Callable[..., Any]:
        inside = False

        @functools.wraps(before)
        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            if inside:
                return before(module, *args, **kwargs)
            change = len(self.watch.graphs), self.watch.place()
            for one in module.modules():
                places[one] = change
            inside = True
            try:
                return before(module, *args, **kwargs)
            finally:
                inside = False

        return call

    def _runs(self, module: torch.nn.Module, _args: Any) -> None:
        graph = self.watch.capture
        if graph is not None and depends_on_mode(module):
            self._ran.setdefault(graph.number, {})[weakref.ref(module)] = module.training

    def replaying(self, graph: WatchedGraph) -> None:
        for reference, training in self._ran.get(graph.number, {}).items():
            module = reference()
            if module is None or module.training == training:
                continue
            mode = "train()" if training else "eval()"
            self.watch.report(
                TRAIN_EVAL_TOGGLE,
                f"{type(module).__name__} was captured in {mode}, and the replay goes on so",
                changed_at(self._toggled, module, graph) or self.watch.place(),
                phase="replay",
            )
            return
