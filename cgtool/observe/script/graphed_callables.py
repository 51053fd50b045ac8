"""Observer of ``make_graphed_callables``: its callables, their calls and their backwards."""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from cgtool.observe.frames import call_user
from cgtool.observe.kept_values import MISSING, kept
from cgtool.observe.script import events
from cgtool.observe.script.script import ObservedScript, running_modules
from cgtool.observe.script.state import GraphedCallable
from cgtool.observe.tensors import key_of, tensors_in
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import no_torch_function, pytree
from cgtool.torch_compat.weak import Weak


class _Running(threading.local):
    """The graphed callable that runs on this thread."""

    call: tuple[GraphedCallable, tuple[Any, ...]] | None = None
    """The innermost call of a graphed callable, and its arguments."""


class _Callables:
    """Follows each callable from ``make_graphed_callables`` to its last backward."""

    def __init__(self, script: ObservedScript) -> None:
        self.script = script
        self._graphing: tuple[GraphedCallable, ...] | None = None
        """Callables of the ``make_graphed_callables`` that is running."""
        self._captures = 0
        self._wrappers: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()
        self._running = _Running()
        self._calls: dict[GraphedCallable, int] = {}
        """How often each was called."""

    def make(
        self, original: Any, callables: Any, sample_args: Any, *args: Any, **kwargs: Any
    ) -> Any:
        single = not isinstance(callables, tuple)
        targets = (callables,) if single else callables
        samples = (sample_args,) if single else sample_args
        graphed = tuple(self._described(*pair) for pair in zip(targets, samples, strict=False))
        self.script.publish(events.CallablesGraphing(targets, graphed))
        self._graphing, self._captures = graphed, 0
        try:
            results = call_user(original, callables, sample_args, *args, **kwargs)
        finally:
            self._graphing = None
        self.script.publish(events.CallablesGraphed(graphed, self._captures))
        pairs = zip((results,) if single else results, graphed, strict=False)
        followed = tuple(self._follow(*pair) for pair in pairs)
        return followed[0] if single else followed

    def _follow(self, result: Any, graphed: GraphedCallable) -> Any:
        """A wrapper that the script calls instead of ``result``; a module stays, with another
        forward."""
        if isinstance(result, torch.nn.Module):
            result.forward = self._follow_calls(result.forward, graphed)
            return result
        return self._follow_calls(result, graphed)

    def _follow_calls(self, function: Callable[..., Any], graphed: GraphedCallable) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            module = graphed.module()
            if module is not None and module.training != graphed.training:
                # PyTorch calls the original forward.
                self.script.publish(events.GraphedCallFellBack(graphed))
                return call_user(function, *args, **kwargs)
            running = self._running
            outer, running.call = running.call, (graphed, args)
            try:
                result = call_user(function, *args, **kwargs)
            finally:
                running.call = outer
            self._follow_backward(result, graphed)
            self.script.publish(events.CallableReturned(graphed, [*tensors_in(result)]))
            return result

        self._wrappers.add(call)
        return call

    def _follow_backward(self, result: Any, graphed: GraphedCallable) -> None:
        number = self._calls.get(graphed)

        def backward_begins(_gradients: Any) -> None:
            if self._calls.get(graphed) != number:
                graphed.called_twice = True
                self.script.publish(events.GraphedBackwardTooLate(graphed))
            if torch.is_grad_enabled():
                self.script.publish(events.GraphedBackwardKeepsGraph(graphed))

        with no_torch_function():
            for tensor in tensors_in(result):
                if tensor.grad_fn is not None:
                    # All outputs come from one autograd node.
                    tensor.grad_fn.register_prehook(backward_begins)
                    return

    def capture_began(self, event: events.CaptureBegan) -> None:
        if self._graphing is None:
            return
        # PyTorch captures all forwards in order before the first backward.
        if self._captures < len(self._graphing):
            event.graph.callable = self._graphing[self._captures]
        else:
            event.graph.callable = GraphedCallable()
        event.graph.made_with = self._graphing
        self._captures += 1

    def replay_begins(self, event: events.ReplayBegins) -> None:
        running = self._running
        if running.call is None or event.graph.callable is not running.call[0]:
            return
        graphed, arguments = running.call
        self._calls[graphed] = self._calls.get(graphed, 0) + 1
        called = next(running_modules(sys._getframe(1)), None)
        leaves = tuple(pytree.tree_leaves(arguments))
        self.script.publish(events.GraphedCall(graphed, leaves, called))

    def _described(self, target: Any, samples: Any) -> GraphedCallable:
        leaves = list(tensors_in(samples))
        graphed = GraphedCallable(
            samples=tuple(Weak(tensor) for tensor in leaves),
            structure=pytree.tree_structure(samples),
            function=kept(target),
            static_keys=frozenset(key_of(tensor) for tensor in leaves),
        )
        if isinstance(target, torch.nn.Module):
            graphed.module = weakref.ref(target)
            own = target.__dict__.get("forward")
            graphed.function = kept(own) if own else partial(_forward_of, graphed.module)
            graphed.training = target.training
            graphed.trainable = {id(own): own.requires_grad for own in target.parameters()}
            graphed.again = target.__dict__.get("forward") in self._wrappers
        return graphed


def _forward_of(module: Callable[[], torch.nn.Module | None]) -> Any:
    """The forward of a module's class, which a graph does not replace."""
    found = module()
    return MISSING if found is None else partial(type(found).forward, found)


def observe_callables(script: ObservedScript, patches: Patches) -> None:
    """``make_graphed_callables``, calls of what it returns, and their backwards.

    Cost: for each call of a graphed callable a look at its arguments and a hook on its autograd
    node. Does not disturb the program: the graphs are PyTorch's own.
    """
    callables = _Callables(script)
    for owner in (torch.cuda, torch.cuda.graphs):
        patches.wrap(owner, "make_graphed_callables", callables.make)
    script.subscribe(events.CaptureBegan, callables.capture_began)
    script.subscribe(events.ReplayBegins, callables.replay_begins)
